/* mscoree.dll: what pykd asks of .NET when it starts, and Wine's own lacks.
 *
 * pykd creates an ICLRDebugging; its OpenVirtualProcess is answered with CORDBG_E_NOT_CLR, as
 * .NET answers for a target without managed code.
 */
#include <windows.h>

#define CORDBG_E_NOT_CLR ((HRESULT)0x80131c44)

static const GUID clr_debugging = {
    0xbacc578d, 0xfbdd, 0x48a4, {0x96, 0x9f, 0x02, 0xd9, 0x32, 0xb7, 0x46, 0x34}};

static HRESULT WINAPI query(void *self, REFIID id, void **out)
{
    *out = self;
    return S_OK;
}

static ULONG WINAPI reference(void *self) { return 1; }

static HRESULT WINAPI open_process(void *self, ULONG64 base, void *target, void *libraries,
                                   void *version, REFIID id, void **process, void *found,
                                   void *flags)
{
    if (process)
        *process = NULL;
    return CORDBG_E_NOT_CLR;
}

static HRESULT WINAPI can_unload(void *self, HMODULE module) { return S_FALSE; }

static void *methods[] = {query, reference, reference, open_process, can_unload};
static void *debugging = methods;

__declspec(dllexport) HRESULT WINAPI CLRCreateInstance(REFCLSID class, REFIID id, void **out)
{
    int known = IsEqualGUID(class, &clr_debugging);
    *out = known ? &debugging : NULL;
    return known ? S_OK : CLASS_E_CLASSNOTAVAILABLE;
}
