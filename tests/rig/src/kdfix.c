/* kdfix.dll: lets DbgEng open its KDNET socket under Wine. Load it before the attach.
 *
 * DbgEng sets IP_RECEIVE_BROADCAST (level 0, option 22) and gives up when that fails; Wine's
 * setsockopt does not know the option. DbgEng looks setsockopt up by name at each attach, so it is
 * enough that the entry in ws2_32's export table leads here: in the memory of this process only,
 * and nothing but that one option behaves differently.
 */
#include <winsock2.h>
#include <windows.h>
#include <string.h>

#define IP_RECEIVE_BROADCAST 22

static int(WINAPI *real)(SOCKET, int, int, const char *, int);

static int WINAPI answer(SOCKET socket, int level, int option, const char *value, int length)
{
    if (level == IPPROTO_IP && option == IP_RECEIVE_BROADCAST)
        return 0;
    return real(socket, level, option, value, length);
}

/* Export tables hold 32-bit offsets, so the jump must lie within 4 GB behind the module. */
static BYTE *memory_behind(BYTE *module)
{
    for (ULONG_PTR at = 0x100000; at < 0x70000000; at += 0x10000) {
        BYTE *found = VirtualAlloc((void *)(((ULONG_PTR)module + at) & ~(ULONG_PTR)0xffff), 0x1000,
                                   MEM_RESERVE | MEM_COMMIT, PAGE_EXECUTE_READWRITE);
        if (found)
            return found;
    }
    return NULL;
}

static BOOL redirect(BYTE *module, const char *wanted)
{
    IMAGE_NT_HEADERS64 *headers = (void *)(module + ((IMAGE_DOS_HEADER *)module)->e_lfanew);
    IMAGE_DATA_DIRECTORY *place =
        &headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_EXPORT];
    IMAGE_EXPORT_DIRECTORY *exports = (void *)(module + place->VirtualAddress);
    DWORD *names = (void *)(module + exports->AddressOfNames);
    DWORD *functions = (void *)(module + exports->AddressOfFunctions);
    WORD *ordinals = (void *)(module + exports->AddressOfNameOrdinals);
    for (DWORD i = 0; i < exports->NumberOfNames; i++) {
        if (strcmp((char *)module + names[i], wanted))
            continue;
        DWORD *entry = &functions[ordinals[i]], before;
        BYTE *jump = memory_behind(module);
        if (!jump || !VirtualProtect(entry, sizeof *entry, PAGE_READWRITE, &before))
            return FALSE;
        void *target = (void *)answer;
        real = (void *)(module + *entry);
        memcpy(jump, "\x48\xb8", 2); /* mov rax, target */
        memcpy(jump + 2, &target, 8);
        memcpy(jump + 10, "\xff\xe0", 2); /* jmp rax */
        *entry = (DWORD)(jump - module);
        return VirtualProtect(entry, sizeof *entry, before, &before);
    }
    return FALSE;
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, void *reserved)
{
    if (reason != DLL_PROCESS_ATTACH)
        return TRUE;
    HMODULE sockets = LoadLibraryA("ws2_32.dll");
    return sockets && redirect((BYTE *)sockets, "setsockopt");
}
