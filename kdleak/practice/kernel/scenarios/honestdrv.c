/* honestdrv.sys: goes through the same five frames with the same tag, and closes everything. */
#include "layers.h"

#define OPEN_SESSIONS 16

volatile ULONG ScenarioOperationsPerTick = 1;

/* The driver's own book-keeping. */
ULONG HandlesOpened, HandlesClosed;

static PVOID Open[OPEN_SESSIONS];
static ULONG OpenCount;

NOINLINE PVOID OpenHandle(void)
{
    PVOID Handle = FltAllocateContext(0x60, SESSION_TAG);

    if (Handle != NULL)
        HandlesOpened++;
    return Handle;
}

NOINLINE void CloseHandle(PVOID Handle)
{
    FltReleaseContext(Handle, SESSION_TAG);
    HandlesClosed++;
}

NOINLINE void HonestPreCreate(ULONG64 Tick)
{
    (void)Tick;
    while (OpenCount != 0)
        CloseHandle(Open[--OpenCount]);
    for (ULONG Count = 2 * ScenarioOperationsPerTick; Count != 0; Count--) {
        PVOID Handle = OpenHandle();
        if (Handle == NULL)
            return;
        if (OpenCount == OPEN_SESSIONS)
            CloseHandle(Handle);
        else
            Open[OpenCount++] = Handle;
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    FltRegisterFilter(HonestPreCreate);
    return STATUS_SUCCESS;
}
