/* ext.dll, exts.dll and kext.dll of the rig: extensions without a command.
 *
 * A debugger's folder has them and the engine looks for them; without them it complains at the
 * attach and at every extension command.
 */
#include <windows.h>

__declspec(dllexport) HRESULT CALLBACK DebugExtensionInitialize(PULONG version, PULONG flags)
{
    *version = MAKELONG(0, 1);
    *flags = 0;
    return S_OK;
}
