/* The allocator: nt!ExAllocatePool* and nt!ExFreePool*, shaped like Windows 11's so that stacks,
 * the pool header and the PoolHitTag test look and behave as they do there.
 *
 * Small blocks (up to 0xFE0 bytes) carry a POOL_HEADER and come from free lists by size, whole
 * pages being cut up on demand; larger ones are page runs recorded in the big page table. */
#include "nt.h"

typedef struct _POOL_HEADER {
    UCHAR PreviousSize;
    UCHAR PoolIndex;
    UCHAR BlockSize; /* units of 16 bytes, header included */
    UCHAR PoolType;  /* 0 free, 2 nonpaged in use, 3 paged in use */
    ULONG PoolTag;
    ULONG64 ProcessBilled;
} POOL_HEADER;
_Static_assert(sizeof(POOL_HEADER) == 16, "POOL_HEADER");

typedef struct _POOL_FREE_BLOCK {
    POOL_HEADER Header;
    struct _POOL_FREE_BLOCK *Next;
} POOL_FREE_BLOCK;

#define POOL_SMALL_LIMIT 0xFE0ULL
#define POOL_IN_USE 2
#define PROTECTED_POOL 0x80000000U

/* Stock Windows leaves this value here: no tag a driver would use. */
volatile ULONG PoolHitTag = 0xFFFFFF0F;
LEDGER *ExpLedger;
static POOL_FREE_BLOCK *ExpFreeList[2][256];

/* What the big page table records: POOL_TYPE bits, from 24H2 on POOL_FLAGS bits. */
static ULONG ExpBigPageType(ULONG Pool)
{
#if PRACTICE_BUILD >= 26100
    return Pool == 0 ? 0x40 : 0x100;
#else
    return Pool == 0 ? 0x200 : 1;
#endif
}

static BOOLEAN ExpRefillFreeList(ULONG Pool, ULONG Units)
{
    ULONG64 Page = MiAllocatePoolPages(Pool, 1);
    ULONG Bytes = Units * 16;

    if (Page == 0)
        return FALSE;
    /* From the last to the first, so that addresses are handed out in ascending order. */
    for (LONG Index = (LONG)(PAGE_SIZE / Bytes) - 1; Index >= 0; Index--) {
        POOL_FREE_BLOCK *Block = (POOL_FREE_BLOCK *)(Page + (ULONG64)Index * Bytes);
        Block->Header.BlockSize = (UCHAR)Units;
        Block->Header.PoolType = 0;
        Block->Next = ExpFreeList[Pool][Units];
        ExpFreeList[Pool][Units] = Block;
    }
    return TRUE;
}

__attribute__((section("POOLCODE"))) NOINLINE PVOID ExAllocateHeapPool(ULONG Pool, SIZE_T Size,
                                                                       ULONG Tag, PVOID Caller)
{
    PVOID Block;
    SIZE_T Charge;

    if (Size > POOL_SMALL_LIMIT) {
        ULONG64 Pages = (Size + PAGE_SIZE - 1) >> 12;
        ULONG64 Address = MiAllocatePoolPages(Pool, Pages);
        if (Address == 0)
            return NULL;
        Charge = Pages << 12;
        if (!ExpAddTagForBigPages(Address, Tag, Charge, ExpBigPageType(Pool))) {
            MiFreePoolPages(Pool, Address, Pages);
            return NULL;
        }
        Block = (PVOID)Address;
    } else {
        ULONG Units = Size == 0 ? 2 : (ULONG)((Size + 15 + sizeof(POOL_HEADER)) >> 4);
        POOL_FREE_BLOCK *Free;
        if (ExpFreeList[Pool][Units] == NULL && !ExpRefillFreeList(Pool, Units))
            return NULL;
        Free = ExpFreeList[Pool][Units];
        ExpFreeList[Pool][Units] = Free->Next;
        Free->Header.PreviousSize = 0;
        Free->Header.PoolIndex = 0;
        Free->Header.PoolType = (UCHAR)(POOL_IN_USE | Pool);
        Free->Header.PoolTag = Tag;
        Free->Header.ProcessBilled = 0;
        Charge = (SIZE_T)Units * 16;
        Block = &Free->Next;
    }
    if (UNLIKELY(Tag == PoolHitTag))
        __debugbreak();
    ExpInsertPoolTracker(Tag, Charge, Pool);
    ExpLedgerCharge(Block, Charge, Tag, Pool, Caller);
    return Block;
}

__attribute__((section("POOLCODE"))) NOINLINE void ExFreeHeapPool(PVOID P, PVOID Caller)
{
    ULONG64 Address = (ULONG64)P;
    ULONG Pool = Address >= MmPagedPoolStart && Address < MmPagedPoolEnd;
    SIZE_T Charge;
    ULONG Tag;

    if (Pool == 0 && (Address < MmNonPagedPoolStart || Address >= MmNonPagedPoolEnd))
        KeBugCheckEx(0xC2, 0x46, Address, 0, 0);
    if ((Address & (PAGE_SIZE - 1)) == 0) {
        if (!ExpFindAndRemoveTagBigPages(Address, &Tag, &Charge))
            KeBugCheckEx(0xC2, 0x46, Address, 0, 0);
        if (UNLIKELY(Tag == PoolHitTag))
            __debugbreak();
        ExpRemovePoolTracker(Tag, Charge, Pool);
        ExpLedgerCredit(P, Charge, Pool, Caller);
        MiFreePoolPages(Pool, Address, Charge >> 12);
    } else {
        POOL_FREE_BLOCK *Block = (POOL_FREE_BLOCK *)(Address - sizeof(POOL_HEADER));
        if ((Block->Header.PoolType & POOL_IN_USE) == 0)
            KeBugCheckEx(0xC2, 7, Block->Header.PoolTag, 0, Address);
        Tag = Block->Header.PoolTag;
        Charge = (SIZE_T)Block->Header.BlockSize * 16;
        if (UNLIKELY(Tag == PoolHitTag))
            __debugbreak();
        ExpRemovePoolTracker(Tag, Charge, Pool);
        ExpLedgerCredit(P, Charge, Pool, Caller);
        Block->Header.PoolType = 0;
        Block->Next = ExpFreeList[Pool][Block->Header.BlockSize];
        ExpFreeList[Pool][Block->Header.BlockSize] = Block;
    }
}

__attribute__((section("POOLCODE"))) NOINLINE PVOID
ExpAllocatePoolWithTagFromNode(ULONG Pool, SIZE_T Size, ULONG Tag, BOOLEAN Zero, PVOID Caller)
{
    PVOID Block;

    Tag &= ~PROTECTED_POOL;
    if (Tag == 0)
        Tag = TAG('B', 'a', 'd', '0');
    Block = ExAllocateHeapPool(Pool, Size, Tag, Caller);
    if (Block != NULL && Zero)
        memset(Block, 0, Size);
    return Block;
}

PVOID ExAllocatePoolWithTag(ULONG PoolType, SIZE_T NumberOfBytes, ULONG Tag)
{
    PVOID Block = ExpAllocatePoolWithTagFromNode(PoolType & 1, NumberOfBytes, Tag, FALSE,
                                                 __builtin_return_address(0));
    return Block;
}

PVOID ExAllocatePool(ULONG PoolType, SIZE_T NumberOfBytes)
{
    PVOID Block = ExpAllocatePoolWithTagFromNode(PoolType & 1, NumberOfBytes,
                                                 TAG('N', 'o', 'n', 'e'), FALSE,
                                                 __builtin_return_address(0));
    return Block;
}

PVOID ExAllocatePool2(ULONG64 Flags, SIZE_T NumberOfBytes, ULONG Tag)
{
    PVOID Block = ExpAllocatePoolWithTagFromNode((Flags & POOL_FLAG_PAGED) != 0, NumberOfBytes, Tag,
                                                 (Flags & POOL_FLAG_UNINITIALIZED) == 0,
                                                 __builtin_return_address(0));
    return Block;
}

PVOID ExAllocatePool3(ULONG64 Flags, SIZE_T NumberOfBytes, ULONG Tag,
                      const void *ExtendedParameters, ULONG Count)
{
    PVOID Block = ExpAllocatePoolWithTagFromNode((Flags & POOL_FLAG_PAGED) != 0, NumberOfBytes, Tag,
                                                 (Flags & POOL_FLAG_UNINITIALIZED) == 0,
                                                 __builtin_return_address(0));
    (void)ExtendedParameters;
    (void)Count;
    return Block;
}

void ExFreePool(PVOID P)
{
    ExFreeHeapPool(P, __builtin_return_address(0));
}

void ExFreePoolWithTag(PVOID P, ULONG Tag)
{
    (void)Tag;
    ExFreeHeapPool(P, __builtin_return_address(0));
}

void InitializePool(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    ExpLedger = (LEDGER *)LoaderBlock->Ledger;
    ExpInitializeTrackers(LoaderBlock);
}

/* An absolute address gives the image relocations, and with them a section after POOLCODE:
   Microsoft's dbghelp cannot name addresses in an image's last section. */
volatile ULONG *KiRelocated = &PoolHitTag;
