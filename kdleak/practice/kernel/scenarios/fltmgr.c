/* fltmgr.sys of the practice machine: the outermost layer. It calls the drivers registered with it
 * once per tick, and passes their requests for memory on. */
#define INSIDE_FLTMGR
#include "layers.h"

#define MAXIMUM_FILTERS 4

__attribute__((dllimport)) PVOID NetioAllocateMdl(SIZE_T Bytes, ULONG Tag);
__attribute__((dllimport)) void NetioFreeMdl(PVOID P, ULONG Tag);

static PRE_OPERATION *Filters[MAXIMUM_FILTERS];
static ULONG FilterCount;

PVOID FltAllocateContext(SIZE_T Bytes, ULONG Tag)
{
    return NetioAllocateMdl(Bytes, Tag);
}

void FltReleaseContext(PVOID P, ULONG Tag)
{
    NetioFreeMdl(P, Tag);
}

void FltRegisterFilter(PRE_OPERATION *PreOperation)
{
    if (FilterCount < MAXIMUM_FILTERS)
        Filters[FilterCount++] = PreOperation;
}

NOINLINE void FltpPerformPreCallbacks(ULONG64 Tick)
{
    for (ULONG Index = 0; Index < FilterCount; Index++)
        Filters[Index](Tick);
}

static void FltpDispatch(PVOID Context)
{
    (void)Context;
    for (;;) {
        FltpPerformPreCallbacks(KeQueryTickCount());
        KeDelayExecutionThread(1);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    PsCreateSystemThread(FltpDispatch, NULL, 0);
    return STATUS_SUCCESS;
}
