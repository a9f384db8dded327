/* kdfix.dll: lets DbgEng open its KDNET socket under Wine. Load it before the attach.
 *
 * DbgEng sets IP_RECEIVE_BROADCAST (level 0, option 22) and gives up when that fails; Wine's
 * setsockopt does not know the option.
 *
 * On Windows the port of a process that was killed is free at once. Wine's server keeps the socket,
 * bound and for ever, when data came for it just when the process died, so that the next debugger
 * finds the port taken. There it may be taken over; not while the process that bound it lives, which
 * its mutex tells.
 *
 * DbgEng looks both functions up by name at each attach, so it is enough that their entries in
 * ws2_32's export table lead here: in the memory of this process only.
 */
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <string.h>

#define IP_RECEIVE_BROADCAST 22
#define MOST_PORTS 16

static int(WINAPI *real_setsockopt)(SOCKET, int, int, const char *, int);
static int(WINAPI *real_bind)(SOCKET, const struct sockaddr *, int);
static int(WINAPI *option_of)(SOCKET, int, int, char *, int *);
static SOCKET(WINAPI *new_socket)(int, int, int);
static int(WINAPI *close_socket)(SOCKET);

static int WINAPI set_option(SOCKET socket, int level, int option, const char *value, int length)
{
    if (level == IPPROTO_IP && option == IP_RECEIVE_BROADCAST)
        return 0;
    if (level == SOL_SOCKET && option == SO_EXCLUSIVEADDRUSE)
        return 0; /* Linux does nothing else, as long as nobody asks; see bind_udp */
    return real_setsockopt(socket, level, option, value, length);
}

/* Whether a port is this process's own from now on: until it ends, whatever ends it. */
static BOOL claim(unsigned port)
{
    static unsigned claimed[MOST_PORTS];
    static int count;
    char name[32];
    for (int i = 0; i < count; i++)
        if (claimed[i] == port)
            return TRUE;
    if (count == MOST_PORTS)
        return FALSE;
    snprintf(name, sizeof name, "kdfix-udp-%u", port);
    HANDLE mutex = CreateMutexA(NULL, FALSE, name);
    if (!mutex)
        return FALSE;
    if (GetLastError() == ERROR_ALREADY_EXISTS) {
        CloseHandle(mutex);
        return FALSE;
    }
    claimed[count++] = port;
    return TRUE;
}

/* Whether a port is free, dead processes counted. */
static BOOL is_free(const struct sockaddr *name, int length)
{
    SOCKET probe = new_socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    BOOL found = probe != INVALID_SOCKET && !real_bind(probe, name, length);
    if (probe != INVALID_SOCKET)
        close_socket(probe);
    return found;
}

static int WINAPI bind_udp(SOCKET socket, const struct sockaddr *name, int length)
{
    struct sockaddr_in address;
    int kind = 0, size = sizeof kind, yes = 1, no = 0;
    if (!name || length != sizeof address || name->sa_family != AF_INET ||
        option_of(socket, SOL_SOCKET, SO_TYPE, (char *)&kind, &size) || kind != SOCK_DGRAM)
        return real_bind(socket, name, length);
    memcpy(&address, name, sizeof address);
    unsigned port = (BYTE)name->sa_data[0] << 8 | (BYTE)name->sa_data[1];
    if (!port || !claim(port))
        return real_bind(socket, name, length);
    /* What is left of the dead is bound to the one address that all targets of the rig send to:
     * of two sockets there the later one gets what comes, but none that is bound to all. */
    if (!is_free(name, length))
        address.sin_addr.S_un.S_addr = 0x0100007f;
    /* Both sockets must allow it. */
    real_setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, (char *)&yes, sizeof yes);
    if (!real_bind(socket, (struct sockaddr *)&address, sizeof address))
        return 0;
    real_setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, (char *)&no, sizeof no);
    return real_bind(socket, name, length); /* fails, with the error that DbgEng knows */
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

/* Lead an export to a function of ours; what it led to before, NULL when that cannot be done. */
static void *redirect(BYTE *module, const char *wanted, void *target)
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
            return NULL;
        void *real = module + *entry;
        memcpy(jump, "\x48\xb8", 2); /* mov rax, target */
        memcpy(jump + 2, &target, 8);
        memcpy(jump + 10, "\xff\xe0", 2); /* jmp rax */
        *entry = (DWORD)(jump - module);
        return VirtualProtect(entry, sizeof *entry, before, &before) ? real : NULL;
    }
    return NULL;
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, void *reserved)
{
    if (reason != DLL_PROCESS_ATTACH)
        return TRUE;
    HMODULE sockets = LoadLibraryA("ws2_32.dll");
    if (!sockets)
        return FALSE;
    option_of = (void *)GetProcAddress(sockets, "getsockopt");
    new_socket = (void *)GetProcAddress(sockets, "socket");
    close_socket = (void *)GetProcAddress(sockets, "closesocket");
    real_setsockopt = redirect((BYTE *)sockets, "setsockopt", (void *)set_option);
    real_bind = redirect((BYTE *)sockets, "bind", (void *)bind_udp);
    return option_of && new_socket && close_socket && real_setsockopt && real_bind;
}
