/* Wdf01000.sys of the practice machine: the innermost layer, the only one that calls the pool. */
#include "ntbase.h"

#define EXPORTED __attribute__((dllexport))

NOINLINE PVOID FxPoolAllocate(SIZE_T Bytes, ULONG Tag)
{
    return ExAllocatePool2(POOL_FLAG_NON_PAGED, Bytes, Tag);
}

NOINLINE void FxPoolFree(PVOID P, ULONG Tag)
{
    ExFreePoolWithTag(P, Tag);
}

EXPORTED NOINLINE PVOID imp_WdfMemoryCreate(SIZE_T Bytes, ULONG Tag)
{
    return FxPoolAllocate(Bytes, Tag);
}

EXPORTED NOINLINE void imp_WdfObjectDelete(PVOID P, ULONG Tag)
{
    FxPoolFree(P, Tag);
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    return STATUS_SUCCESS;
}
