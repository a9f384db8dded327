/* python.exe: hands its command line to python39.dll, as CPython's own does.
 * kdfix.dll comes first, so that an engine loaded by pykd or pybag finds KDNET usable under Wine.
 */
#include <windows.h>
#include <stdio.h>

int wmain(int count, wchar_t **arguments)
{
    LoadLibraryW(L"kdfix.dll");
    HMODULE library = LoadLibraryW(L"python39.dll");
    int (*run)(int, wchar_t **) = library ? (void *)GetProcAddress(library, "Py_Main") : NULL;
    if (!run) {
        fprintf(stderr, "cannot use python39.dll: error %lu\n", GetLastError());
        return 1;
    }
    return run(count, arguments);
}
