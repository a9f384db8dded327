/* Pool tracking: the tag tables (one per processor, slot-aligned) and the big page table, in the
 * row layouts of the Windows build this kernel is compiled as (PRACTICE_BUILD). */
#include "nt.h"

#if PRACTICE_BUILD >= 20348
typedef struct _POOL_TRACKER_TABLE {
    volatile LONG Key;
    SIZE_T NonPagedBytes;
    SIZE_T NonPagedAllocs;
    SIZE_T NonPagedFrees;
    SIZE_T PagedBytes;
    SIZE_T PagedAllocs;
    SIZE_T PagedFrees;
    LONG64 AvailableLimit[2];
    PVOID LimitInfo;
} POOL_TRACKER_TABLE;
_Static_assert(sizeof(POOL_TRACKER_TABLE) == 0x50, "row");
typedef SIZE_T TRACKER_COUNT;
#elif PRACTICE_BUILD >= 16299
typedef struct _POOL_TRACKER_TABLE {
    volatile LONG Key;
    SIZE_T NonPagedBytes;
    SIZE_T NonPagedAllocs;
    SIZE_T NonPagedFrees;
    SIZE_T PagedBytes;
    SIZE_T PagedAllocs;
    SIZE_T PagedFrees;
} POOL_TRACKER_TABLE;
_Static_assert(sizeof(POOL_TRACKER_TABLE) == 0x38, "row");
typedef SIZE_T TRACKER_COUNT;
#else
typedef struct _POOL_TRACKER_TABLE {
    volatile LONG Key;
    ULONG NonPagedAllocs;
    ULONG NonPagedFrees;
    SIZE_T NonPagedBytes;
    ULONG PagedAllocs;
    ULONG PagedFrees;
    SIZE_T PagedBytes;
} POOL_TRACKER_TABLE;
_Static_assert(sizeof(POOL_TRACKER_TABLE) == 0x28, "row");
typedef ULONG TRACKER_COUNT;
#endif

typedef struct _POOL_TRACKER_BIG_PAGES {
    volatile ULONG64 Va;
    ULONG Key;
    ULONG Pattern : 8;
    ULONG PoolType : 12;
    ULONG SlushSize : 12;
    SIZE_T NumberOfBytes;
#if PRACTICE_BUILD >= 20348
    PVOID ProcessBilled;
#endif
} POOL_TRACKER_BIG_PAGES;
_Static_assert(sizeof(POOL_TRACKER_BIG_PAGES) == (PRACTICE_BUILD >= 20348 ? 0x20 : 0x18), "big row");

#define BIG_PAGE_FREE 1ULL
#define TAG_OVERFLOW TAG('O', 'v', 'f', 'l')
#define TAG_POOL TAG('P', 'o', 'o', 'l')

PVOID PoolTrackTable;
SIZE_T PoolTrackTableSize, PoolTrackTableMask;
POOL_TRACKER_TABLE *PoolTrackTableExpansion;
SIZE_T PoolTrackTableExpansionSize;
PVOID ExPoolTagTables[0x800];
POOL_TRACKER_BIG_PAGES *PoolBigPageTable;
SIZE_T PoolBigPageTableSize;
ULONG ExpPoolBigEntriesInUse;
static SIZE_T ExpExpansionLimit;

static ULONG ExpHash(ULONG64 Value)
{
    ULONG64 Product = 40543 * Value;
    return (ULONG)Product ^ (ULONG)(Product >> 32);
}

/* Row of a tag in the current processor's table, claiming a slot for a tag never seen. */
static POOL_TRACKER_TABLE *ExpFindTracker(ULONG Tag)
{
    POOL_TRACKER_TABLE *Global = PoolTrackTable;
    POOL_TRACKER_TABLE *Local = ExPoolTagTables[KeGetCurrentPrcb()->Number];
    SIZE_T First = ExpHash(Tag) & PoolTrackTableMask, Slot = First;

    do {
        if ((ULONG)Global[Slot].Key == Tag || Global[Slot].Key == 0) {
            Global[Slot].Key = (LONG)Tag;
            Local[Slot].Key = (LONG)Tag;
            return &Local[Slot];
        }
        Slot = (Slot + 1) & PoolTrackTableMask;
    } while (Slot != First);
    for (Slot = 0; Slot < PoolTrackTableExpansionSize; Slot++) {
        POOL_TRACKER_TABLE *Row = &PoolTrackTableExpansion[Slot];
        if ((ULONG)Row->Key == Tag || Row->Key == 0) {
            Row->Key = (LONG)Tag;
            return Row;
        }
    }
    if (PoolTrackTableExpansionSize < ExpExpansionLimit) {
        SIZE_T Rows = PAGE_SIZE / sizeof(POOL_TRACKER_TABLE);
        POOL_TRACKER_TABLE *Table;
        if (PoolTrackTableExpansionSize == 0 &&
            (Table = (POOL_TRACKER_TABLE *)MiAllocatePoolPages(0, 1)) != NULL) {
            memset(Table, 0, PAGE_SIZE);
            PoolTrackTableExpansion = Table;
            PoolTrackTableExpansionSize = Rows < ExpExpansionLimit ? Rows : ExpExpansionLimit;
            Table[0].Key = (LONG)Tag;
            return &Table[0];
        }
    }
    Global[PoolTrackTableSize - 1].Key = TAG_OVERFLOW;
    Local[PoolTrackTableSize - 1].Key = TAG_OVERFLOW;
    return &Local[PoolTrackTableSize - 1];
}

void ExpInsertPoolTracker(ULONG Tag, SIZE_T Bytes, ULONG Pool)
{
    POOL_TRACKER_TABLE *Row = ExpFindTracker(Tag);

    if (Pool == 0) {
        Row->NonPagedAllocs++;
        Row->NonPagedBytes += Bytes;
    } else {
        Row->PagedAllocs++;
        Row->PagedBytes += Bytes;
    }
}

void ExpRemovePoolTracker(ULONG Tag, SIZE_T Bytes, ULONG Pool)
{
    POOL_TRACKER_TABLE *Row = ExpFindTracker(Tag);

    if (Pool == 0) {
        Row->NonPagedFrees++;
        Row->NonPagedBytes -= Bytes;
    } else {
        Row->PagedFrees++;
        Row->PagedBytes -= Bytes;
    }
}

/* As if the machine had been up for long: the same number of allocations and frees. */
void ExpBiasPoolTracker(ULONG Tag, ULONG64 Count)
{
    POOL_TRACKER_TABLE *Row = ExpFindTracker(Tag);

    Row->NonPagedAllocs += (TRACKER_COUNT)Count;
    Row->NonPagedFrees += (TRACKER_COUNT)Count;
}

static SIZE_T ExpBigPageSlot(ULONG64 Va)
{
#if PRACTICE_BUILD >= 26100
    return ExpHash(Va >> 12) & (PoolBigPageTableSize - 1);
#else
    return ExpHash((ULONG)(Va >> 12)) & (PoolBigPageTableSize - 1);
#endif
}

static void ExpPlaceBigPage(const POOL_TRACKER_BIG_PAGES *Row)
{
    SIZE_T Slot = ExpBigPageSlot(Row->Va);

    while ((PoolBigPageTable[Slot].Va & BIG_PAGE_FREE) == 0)
        Slot = (Slot + 1) & (PoolBigPageTableSize - 1);
    PoolBigPageTable[Slot] = *Row;
}

static BOOLEAN ExpResizeBigPageTable(SIZE_T Rows)
{
    POOL_TRACKER_BIG_PAGES *Old = PoolBigPageTable;
    SIZE_T OldRows = PoolBigPageTableSize;
    SIZE_T Bytes = (Rows * sizeof(POOL_TRACKER_BIG_PAGES) + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);
    POOL_TRACKER_BIG_PAGES *New = (POOL_TRACKER_BIG_PAGES *)MiAllocatePoolPages(0, Bytes >> 12);

    if (New == NULL)
        return FALSE;
    for (SIZE_T Slot = 0; Slot < Rows; Slot++) {
        memset(&New[Slot], 0, sizeof(New[Slot]));
        New[Slot].Va = BIG_PAGE_FREE;
    }
    PoolBigPageTable = New;
    PoolBigPageTableSize = Rows;
    ExpInsertPoolTracker(TAG_POOL, Bytes, 0);
    for (SIZE_T Slot = 0; Slot < OldRows; Slot++)
        if ((Old[Slot].Va & BIG_PAGE_FREE) == 0)
            ExpPlaceBigPage(&Old[Slot]);
    if (Old != NULL) {
        SIZE_T OldBytes = (OldRows * sizeof(*Old) + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);
        MiFreePoolPages(0, (ULONG64)Old, OldBytes >> 12);
        ExpRemovePoolTracker(TAG_POOL, OldBytes, 0);
    }
    return TRUE;
}

BOOLEAN ExpAddTagForBigPages(ULONG64 Va, ULONG Tag, SIZE_T Bytes, ULONG PoolType)
{
    POOL_TRACKER_BIG_PAGES Row;

    if (ExpPoolBigEntriesInUse + ExpPoolBigEntriesInUse / 3 >= PoolBigPageTableSize &&
        !ExpResizeBigPageTable(2 * PoolBigPageTableSize))
        return FALSE;
    memset(&Row, 0, sizeof(Row));
    Row.Va = Va;
    Row.Key = Tag;
    Row.PoolType = PoolType;
    Row.NumberOfBytes = Bytes;
    ExpPlaceBigPage(&Row);
    ExpPoolBigEntriesInUse++;
    return TRUE;
}

static POOL_TRACKER_BIG_PAGES *ExpFindBigPage(ULONG64 Va)
{
    SIZE_T First = ExpBigPageSlot(Va), Slot = First;

    do {
        if (PoolBigPageTable[Slot].Va == Va)
            return &PoolBigPageTable[Slot];
        if (PoolBigPageTable[Slot].Va == BIG_PAGE_FREE)
            return NULL;
        Slot = (Slot + 1) & (PoolBigPageTableSize - 1);
    } while (Slot != First);
    return NULL;
}

BOOLEAN ExpFindAndRemoveTagBigPages(ULONG64 Va, ULONG *Tag, SIZE_T *Bytes)
{
    POOL_TRACKER_BIG_PAGES *Row = ExpFindBigPage(Va);

    if (Row == NULL)
        return FALSE;
    *Tag = Row->Key;
    *Bytes = Row->NumberOfBytes;
    Row->Va |= BIG_PAGE_FREE;
    ExpPoolBigEntriesInUse--;
    return TRUE;
}

void ExpInitializeTrackers(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    SIZE_T Rows = LoaderBlock->TrackerRows;
    SIZE_T Bytes = (Rows * sizeof(POOL_TRACKER_TABLE) + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);

    PoolTrackTableSize = Rows;
    PoolTrackTableMask = Rows - 2;
    ExpExpansionLimit = LoaderBlock->ExpansionRows;
    for (ULONG Number = 0; Number < LoaderBlock->ProcessorCount; Number++) {
        ExPoolTagTables[Number] = (PVOID)MiAllocatePoolPages(0, Bytes >> 12);
        memset(ExPoolTagTables[Number], 0, Bytes);
    }
    PoolTrackTable = ExPoolTagTables[0];
    for (ULONG Number = 0; Number < LoaderBlock->ProcessorCount; Number++)
        ExpInsertPoolTracker(TAG_POOL, Bytes, 0);
    ExpResizeBigPageTable(LoaderBlock->BigPageRows);
}
