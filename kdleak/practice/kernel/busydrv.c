/* busydrv.sys: innocent but loud. It allocates with the tag `Busy` many times more often than
 * leakydrv does, keeps a cache whose size wanders around a fixed value, and frees everything. */
#include "ntbase.h"

#define BUSY_TAG TAG('B', 'u', 's', 'y')
#define CACHE_SLOTS 512
#define RETIRED_SLOTS 256

typedef struct _CACHE_ENTRY {
    ULONG Key;
    ULONG Length;
} CACHE_ENTRY;

volatile ULONG BusyOperationsPerTick = 60;
volatile ULONG BusySeed = 2;

ULONG LookupsSeen;

static ULONG64 Random;
static CACHE_ENTRY *Cache[CACHE_SLOTS];
static CACHE_ENTRY *Retired[RETIRED_SLOTS];
static ULONG RetiredCount;

NOINLINE CACHE_ENTRY *AllocateEntry(ULONG Key)
{
    /* One in 32 entries is larger than a page. */
    ULONG Length = Key % 32 == 0 ? 0x1800 : 0x20 + Key % 0x300;
    CACHE_ENTRY *Entry =
        ExAllocatePool2(POOL_FLAG_NON_PAGED | POOL_FLAG_UNINITIALIZED, Length, BUSY_TAG);

    if (Entry != NULL) {
        Entry->Key = Key;
        Entry->Length = Length;
    }
    return Entry;
}

NOINLINE void FreeEntry(CACHE_ENTRY *Entry)
{
    ExFreePoolWithTag(Entry, BUSY_TAG);
}

NOINLINE void RetireEntry(CACHE_ENTRY *Entry)
{
    /* Most entries are freed later by TrimWorker, on another processor. */
    if (RetiredCount == RETIRED_SLOTS) {
        FreeEntry(Entry);
        return;
    }
    Retired[RetiredCount++] = Entry;
}

NOINLINE void LookupEntry(ULONG Value)
{
    ULONG Slot = Value % CACHE_SLOTS;

    LookupsSeen++;
    if (Cache[Slot] != NULL) {
        RetireEntry(Cache[Slot]);
        Cache[Slot] = NULL;
        if (Value % 16 == 0)
            return; /* leaves a hole for a while: the cache's size is a little noisy */
    }
    Cache[Slot] = AllocateEntry(Value >> 8);
}

NOINLINE void RefreshCache(ULONG Count)
{
    while (Count-- != 0)
        LookupEntry(NextRandom(&Random));
}

static void CacheWorker(PVOID Context)
{
    (void)Context;
    for (;;) {
        RefreshCache(BusyOperationsPerTick);
        KeDelayExecutionThread(1);
    }
}

NOINLINE void TrimCache(void)
{
    while (RetiredCount != 0)
        FreeEntry(Retired[--RetiredCount]);
}

static void TrimWorker(PVOID Context)
{
    (void)Context;
    for (;;) {
        TrimCache();
        KeDelayExecutionThread(1);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    Random = (ULONG64)BusySeed << 8 | 1;
    PsCreateSystemThread(CacheWorker, NULL, 1);
    PsCreateSystemThread(TrimWorker, NULL, 0);
    return STATUS_SUCCESS;
}
