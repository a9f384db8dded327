/* Pages: the two pool regions, handed out first-fit from a page map and backed by page frames on
 * first use, through the self-map of the page tables. Pages stay mapped once they were used. */
#include "nt.h"

ULONG64 MmNonPagedPoolStart, MmNonPagedPoolEnd, MmPagedPoolStart, MmPagedPoolEnd;
ULONG64 MmPteBase, MmAllocatedNonPagedPool, MmAvailablePages;
ULONG64 MmNumberOfPhysicalPages, MmLowestPhysicalPage, MmHighestPhysicalPage;
ULONG64 MmSizeOfPagedPoolInBytes, MmMaximumNonPagedPoolInBytes;

/* What RAM there is; the frames below FIRMWARE_PAGES are not the system's. */
#define FIRMWARE_PAGES 0x100
static struct {
    ULONG NumberOfRuns;
    ULONG64 NumberOfPages;
    struct {
        ULONG64 BasePage;
        ULONG64 PageCount;
    } Run[1];
} MiPhysicalMemoryBlock;
PVOID MmPhysicalMemoryBlock = &MiPhysicalMemoryBlock;

enum { PageNeverUsed = 0, PageFree = 1, PageInUse = 2 };
#define MI_MAXIMUM_POOL_PAGES 0x8000

typedef struct _MI_POOL_REGION {
    ULONG64 Base;
    ULONG Pages;
    ULONG Hint;  /* no free page below this index */
    ULONG InUse;
} MI_POOL_REGION;

static MI_POOL_REGION MiPool[2];
static UCHAR MiPageMap[2][MI_MAXIMUM_POOL_PAGES];
static ULONG64 MiNextFreePage, MiLastFreePage;

/* Present, writable, accessed, dirty, software write bit, no-execute. */
#define MI_POOL_PTE 0x8000000000000863ULL

BOOLEAN MiMapPages(ULONG64 Address, ULONG64 Pages)
{
    ULONG64 *Pte = (ULONG64 *)(MmPteBase + ((Address >> 9) & 0x7FFFFFFFF8ULL));

    for (ULONG64 Index = 0; Index < Pages; Index++) {
        if (Pte[Index] != 0)
            continue;
        if (MiNextFreePage >= MiLastFreePage)
            return FALSE;
        Pte[Index] = (MiNextFreePage << 12) | MI_POOL_PTE;
        MiNextFreePage++;
        MmAvailablePages = MiLastFreePage - MiNextFreePage;
    }
    return TRUE;
}

ULONG64 MiAllocatePoolPages(ULONG Pool, ULONG64 Pages)
{
    MI_POOL_REGION *Region = &MiPool[Pool];
    UCHAR *Map = MiPageMap[Pool];
    ULONG Run = 0;

    while (Region->Hint < Region->Pages && Map[Region->Hint] == PageInUse)
        Region->Hint++;
    for (ULONG Index = Region->Hint; Index < Region->Pages; Index++) {
        Run = Map[Index] == PageInUse ? 0 : Run + 1;
        if (Run == Pages) {
            ULONG First = Index + 1 - (ULONG)Pages;
            ULONG64 Address = Region->Base + First * PAGE_SIZE;
            if (!MiMapPages(Address, Pages))
                return 0;
            memset(Map + First, PageInUse, Pages);
            Region->InUse += (ULONG)Pages;
            if (Pool == 0)
                MmAllocatedNonPagedPool = Region->InUse;
            return Address;
        }
    }
    return 0;
}

void MiFreePoolPages(ULONG Pool, ULONG64 Address, ULONG64 Pages)
{
    MI_POOL_REGION *Region = &MiPool[Pool];
    ULONG First = (ULONG)((Address - Region->Base) >> 12);

    memset(MiPageMap[Pool] + First, PageFree, Pages);
    Region->InUse -= (ULONG)Pages;
    if (First < Region->Hint)
        Region->Hint = First;
    if (Pool == 0)
        MmAllocatedNonPagedPool = Region->InUse;
}

ULONG64 MiPoolPages(ULONG Pool)
{
    return MiPool[Pool].InUse;
}

void MmInitSystem(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    MmPteBase = LoaderBlock->PteBase;
    MiNextFreePage = LoaderBlock->FirstFreePage;
    MiLastFreePage = LoaderBlock->LastFreePage;
    MmAvailablePages = MiLastFreePage - MiNextFreePage;
    MmNumberOfPhysicalPages = LoaderBlock->PhysicalPages;
    MmHighestPhysicalPage = LoaderBlock->PhysicalPages - 1;
    MmLowestPhysicalPage = FIRMWARE_PAGES;
    MiPhysicalMemoryBlock.NumberOfRuns = 1;
    MiPhysicalMemoryBlock.NumberOfPages = LoaderBlock->PhysicalPages - FIRMWARE_PAGES;
    MiPhysicalMemoryBlock.Run[0].BasePage = FIRMWARE_PAGES;
    MiPhysicalMemoryBlock.Run[0].PageCount = MiPhysicalMemoryBlock.NumberOfPages;
    for (ULONG Pool = 0; Pool < 2; Pool++) {
        ULONG64 Pages = LoaderBlock->Pool[Pool].Pages;
        MiPool[Pool].Base = LoaderBlock->Pool[Pool].Base;
        MiPool[Pool].Pages = (ULONG)(Pages < MI_MAXIMUM_POOL_PAGES ? Pages : MI_MAXIMUM_POOL_PAGES);
    }
    MmNonPagedPoolStart = MiPool[0].Base;
    MmNonPagedPoolEnd = MmNonPagedPoolStart + MiPool[0].Pages * PAGE_SIZE;
    MmMaximumNonPagedPoolInBytes = MmNonPagedPoolEnd - MmNonPagedPoolStart;
    MmPagedPoolStart = MiPool[1].Base;
    MmPagedPoolEnd = MmPagedPoolStart + MiPool[1].Pages * PAGE_SIZE;
    MmSizeOfPagedPoolInBytes = MmPagedPoolEnd - MmPagedPoolStart;
}

void *memset(void *Destination, int Value, SIZE_T Length)
{
    void *Result = Destination;
    __asm__ volatile("rep stosb" : "+D"(Destination), "+c"(Length) : "a"(Value) : "memory");
    return Result;
}

void *memcpy(void *Destination, const void *Source, SIZE_T Length)
{
    void *Result = Destination;
    __asm__ volatile("rep movsb" : "+D"(Destination), "+S"(Source), "+c"(Length) : : "memory");
    return Result;
}
