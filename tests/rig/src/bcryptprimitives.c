/* bcryptprimitives.dll: the one function that programs written in Rust ask of it.
 *
 * Wine 8 has no such library; rpds, a part of jsonschema, does not load without it.
 */
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length)
{
    return RtlGenRandom(data, (ULONG)length);
}
