/* ndis.sys of the practice machine: passes requests for memory on to the next layer. */
#include "ntbase.h"

#define EXPORTED __attribute__((dllexport))

__attribute__((dllimport)) PVOID imp_WdfMemoryCreate(SIZE_T Bytes, ULONG Tag);
__attribute__((dllimport)) void imp_WdfObjectDelete(PVOID P, ULONG Tag);

EXPORTED NOINLINE PVOID NdisAllocateMemoryWithTagPriority(SIZE_T Bytes, ULONG Tag)
{
    return imp_WdfMemoryCreate(Bytes, Tag);
}

EXPORTED NOINLINE void NdisFreeMemoryWithTagPriority(PVOID P, ULONG Tag)
{
    imp_WdfObjectDelete(P, Tag);
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    return STATUS_SUCCESS;
}
