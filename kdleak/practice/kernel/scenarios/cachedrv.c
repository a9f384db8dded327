/* cachedrv.sys: a cache that warms up. It fills to its limit and then stays there: for every new
 * entry the one that was not used for longest is given back. Nothing leaks. */
#include "ntbase.h"

#define CACHE_TAG TAG('W', 'a', 'r', 'm')
#define MAXIMUM_ENTRIES 4096

volatile ULONG ScenarioOperationsPerTick = 1;
volatile ULONG ScenarioCacheEntries = 200;

/* The driver's own book-keeping. */
ULONG EntriesAdded, EntriesEvicted;

static PVOID Ring[MAXIMUM_ENTRIES];

NOINLINE PVOID AddEntry(void)
{
    PVOID Entry = ExAllocatePool2(POOL_FLAG_PAGED, 0xA0, CACHE_TAG);

    if (Entry != NULL)
        EntriesAdded++;
    return Entry;
}

NOINLINE void EvictEntry(PVOID Entry)
{
    ExFreePoolWithTag(Entry, CACHE_TAG);
    EntriesEvicted++;
}

NOINLINE void Remember(ULONG Number)
{
    ULONG Limit = ScenarioCacheEntries;
    PVOID *Slot;

    if (Limit == 0 || Limit > MAXIMUM_ENTRIES)
        Limit = MAXIMUM_ENTRIES;
    Slot = &Ring[Number % Limit];
    if (*Slot != NULL)
        EvictEntry(*Slot);
    *Slot = AddEntry();
}

static void CacheThread(PVOID Context)
{
    ULONG Number = 0;

    (void)Context;
    for (;;) {
        for (ULONG Count = ScenarioOperationsPerTick; Count != 0; Count--)
            Remember(Number++);
        KeDelayExecutionThread(1);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    PsCreateSystemThread(CacheThread, NULL, 1);
    return STATUS_SUCCESS;
}
