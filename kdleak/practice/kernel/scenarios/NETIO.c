/* NETIO.sys of the practice machine: passes requests for memory on to the next layer. */
#include "ntbase.h"

#define EXPORTED __attribute__((dllexport))

__attribute__((dllimport)) PVOID NdisAllocateMemoryWithTagPriority(SIZE_T Bytes, ULONG Tag);
__attribute__((dllimport)) void NdisFreeMemoryWithTagPriority(PVOID P, ULONG Tag);

EXPORTED NOINLINE PVOID NetioAllocateMdl(SIZE_T Bytes, ULONG Tag)
{
    return NdisAllocateMemoryWithTagPriority(Bytes, Tag);
}

EXPORTED NOINLINE void NetioFreeMdl(PVOID P, ULONG Tag)
{
    NdisFreeMemoryWithTagPriority(P, Tag);
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    return STATUS_SUCCESS;
}
