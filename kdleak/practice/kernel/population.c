/* What a machine holds before any driver leaks: a static population of tags, so that a ranking has
 * something to rank, and the kernel's own steady churn, so that not only the leak moves. */
#include "nt.h"

typedef struct _POPULATION_ROW {
    char Tag[5];
    UCHAR Pool;
    ULONG Size;
    ULONG Count;
} POPULATION_ROW;

/* Sizes and counts are made up; the names are tags a real machine shows. */
static const POPULATION_ROW ExpPopulation[] = {
    {"CM31", 1, 0x400000 - 0x1000, 6}, {"CM25", 1, 0x5000, 60},  {"CM  ", 1, 0x78, 220},
    {"CMNb", 1, 0x38, 900},   {"CMDa", 1, 0x60, 300},    {"CMkb", 1, 0xA0, 250},
    {"MmSt", 1, 0x2C0, 2600}, {"MmSt", 1, 0x9000, 60},   {"MmCa", 0, 0x130, 1800},
    {"MmCi", 0, 0x1E0, 300},  {"MmSm", 1, 0x40, 700},    {"MmIn", 0, 0xC0, 120},
    {"Mm  ", 0, 0x3000, 24},  {"MmPb", 1, 0x2000, 20},   {"EtwB", 0, 0x10000, 64},
    {"EtwR", 0, 0xB8, 900},   {"EtwG", 1, 0x1D0, 160},   {"EtwD", 1, 0x80, 90},
    {"EtwS", 0, 0x5000, 4},   {"File", 0, 0x180, 2400},  {"Proc", 0, 0xBA0, 130},
    {"Thre", 0, 0x9A0, 900},  {"Toke", 1, 0x6F0, 300},   {"Key ", 1, 0x90, 500},
    {"Even", 0, 0x70, 2200},  {"Sema", 0, 0x78, 700},    {"Muta", 0, 0x90, 400},
    {"Sect", 1, 0x60, 600},   {"Symb", 1, 0x50, 260},    {"Dire", 1, 0x1A0, 60},
    {"Devi", 0, 0x210, 340},  {"Driv", 0, 0x190, 150},   {"Ntfx", 1, 0x180, 1300},
    {"NtfF", 1, 0x2A0, 800},  {"NtFs", 1, 0x48, 900},    {"Ntfr", 0, 0x98, 1100},
    {"Ntff", 1, 0x1C0, 700},  {"Ntf0", 1, 0x30, 200},    {"NtfE", 1, 0x400, 64},
    {"FMfn", 1, 0x160, 1600}, {"FMsl", 0, 0xD0, 1200},   {"FMfz", 0, 0x40, 300},
    {"FMic", 0, 0x2B0, 80},   {"FMac", 1, 0x58, 60},     {"FMos", 1, 0x68, 90},
    {"FSro", 1, 0x90, 110},   {"FSrm", 0, 0x30, 140},    {"Irp ", 0, 0x1A8, 420},
    {"Io  ", 0, 0x68, 460},   {"IoNm", 1, 0x88, 300},    {"IoSB", 1, 0x1000, 24},
    {"IoWI", 0, 0x40, 20},    {"Pool", 0, 0x2000, 10},   {"PoSL", 0, 0x48, 18},
    {"PcNw", 1, 0x50, 60},    {"Pp  ", 1, 0x60, 350},    {"PnpD", 1, 0x130, 90},
    {"Pcic", 0, 0x1100, 12},  {"PciB", 0, 0x1A0, 20},    {"PmPE", 1, 0x40, 40},
    {"PsIn", 1, 0x30, 50},    {"PsJb", 0, 0x5E0, 6},     {"PsQb", 0, 0x90, 48},
    {"PsTp", 1, 0x38, 120},   {"SeAt", 1, 0xA8, 900},    {"SeTl", 1, 0x40, 140},
    {"SePa", 1, 0x30, 60},    {"SeSd", 1, 0xB0, 700},    {"SeTd", 1, 0x1F0, 120},
    {"ObDi", 1, 0x30, 300},   {"ObNm", 1, 0x40, 460},    {"ObSq", 1, 0x40, 120},
    {"Obtb", 1, 0x1000, 90},  {"ObHd", 0, 0x28, 60},     {"NDpb", 0, 0x8000, 10},
    {"NDnd", 0, 0x3A0, 40},   {"NDrt", 0, 0xE0, 30},     {"NDoa", 0, 0x58, 24},
    {"NetB", 0, 0x130, 200},  {"Nb  ", 0, 0x70, 20},     {"TcpE", 0, 0x420, 34},
    {"TcpA", 0, 0xC8, 30},    {"TcpL", 0, 0x180, 12},    {"TNbl", 0, 0x290, 64},
    {"UdpA", 0, 0x108, 28},   {"AfdE", 0, 0x150, 90},    {"AfdB", 0, 0x2180, 16},
    {"AfdX", 0, 0x78, 12},    {"AlMs", 1, 0x110, 150},   {"AlIn", 0, 0x210, 90},
    {"AlHa", 1, 0x200, 30},   {"AlSe", 1, 0x48, 18},     {"Vad ", 0, 0x90, 900},
    {"VadS", 0, 0x48, 900},   {"Vadl", 0, 0x90, 600},    {"VfAT", 0, 0x4000, 2},
    {"Wdf ", 0, 0x100, 120},  {"WfpF", 1, 0x2E0, 60},    {"WfpH", 0, 0xA0, 40},
    {"Wmip", 1, 0x50, 200},   {"WPLS", 0, 0x48, 14},     {"WNFp", 1, 0x1A0, 60},
    {"Gh05", 1, 0x900, 60},   {"Gla1", 1, 0x3B0, 40},    {"Gtmp", 1, 0x1400, 6},
    {"Usti", 1, 0xB0, 120},   {"Usqm", 1, 0x40, 60},     {"Uswd", 1, 0x220, 30},
    {"HidC", 0, 0x320, 18},   {"HidP", 0, 0x500, 12},    {"HdAu", 0, 0x2000, 8},
    {"DxgK", 1, 0x6000, 30},  {"Vi50", 1, 0x280, 90},    {"VidM", 0, 0x1C0, 60},
    {"USBD", 0, 0x180, 30},   {"UHub", 0, 0x640, 9},     {"Xhci", 0, 0x2A00, 6},
    {"smBt", 0, 0x10000, 4},  {"smCr", 0, 0x140, 16},    {"StpD", 0, 0x1600, 8},
    {"RaRS", 0, 0x10A0, 12},  {"ScPD", 0, 0x118, 16},    {"SCSI", 0, 0xE0, 20},
    {"FVE0", 0, 0x800, 16},   {"CcSc", 0, 0x1F0, 260},   {"CcBc", 0, 0x90, 30},
    {"CcVp", 0, 0x400, 12},   {"MPsc", 1, 0x5A0, 160},   {"MPfd", 1, 0x90, 180},
    {"NbL\xF7", 0, 0x90, 7},  {"\x01" "Db", 0, 0x60, 5}, {".Net", 1, 0x70, 9},
    {"N\xF7" "bL", 0, 0x90, 6}, {"A.B ", 1, 0x30, 11},    {"d  b", 0, 0x50, 3},
};

#define POPULATION_ROWS (sizeof(ExpPopulation) / sizeof(ExpPopulation[0]))

static ULONG ExpRowTag(const POPULATION_ROW *Row)
{
    return TAG(Row->Tag[0], Row->Tag[1], Row->Tag[2], Row->Tag[3]);
}

void ExpCreatePopulation(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    for (ULONG Index = 0; Index < POPULATION_ROWS; Index++) {
        const POPULATION_ROW *Row = &ExpPopulation[Index];
        /* Small shares keep one of every tag, but not of what would fill a small machine. */
        ULONG64 Count = (Row->Count * LoaderBlock->Population + (Row->Size < 0x8000 ? 99 : 0)) / 100;
        for (ULONG64 Number = 0; Number < Count; Number++)
            ExAllocatePoolWithTag(Row->Pool, Row->Size, ExpRowTag(Row));
    }
    if (LoaderBlock->CounterBias != 0)
        ExpBiasPoolTracker(TAG('I', 'r', 'p', ' '), LoaderBlock->CounterBias);
}

/* ---- the kernel's own churn: small rings whose entries are replaced in random order, by threads
 * on every processor, so that a block is often freed elsewhere than it was allocated ---- */
#define CHURN_RING 64

static ULONG64 IopRandom;
static ULONG IopOperations;
static PVOID IopIrps[CHURN_RING], IopFiles[CHURN_RING], IopNames[CHURN_RING], IopBuffers[CHURN_RING];

static NOINLINE PVOID IopAllocateIrpPrivate(ULONG Stack)
{
    PVOID Irp = ExAllocatePool2(POOL_FLAG_NON_PAGED, 0xD0 + 0x48 * Stack, TAG('I', 'r', 'p', ' '));
    return Irp;
}

static NOINLINE void IopFreeIrp(PVOID Irp)
{
    ExFreePoolWithTag(Irp, TAG('I', 'r', 'p', ' '));
}

static NOINLINE PVOID ObpAllocateObject(void)
{
    PVOID Object = ExAllocatePoolWithTag(NonPagedPoolNx, 0x180, TAG('F', 'i', 'l', 'e'));
    return Object;
}

static NOINLINE void ObpFreeObject(PVOID Object)
{
    ExFreePoolWithTag(Object, TAG('F', 'i', 'l', 'e'));
}

static NOINLINE PVOID IopAllocateNameBuffer(ULONG Length)
{
    PVOID Name = ExAllocatePoolWithTag(PagedPool, 0x20 + 2 * Length, TAG('I', 'o', 'N', 'm'));
    return Name;
}

static NOINLINE PVOID IopAllocateSystemBuffer(ULONG Length)
{
    PVOID Buffer = ExAllocatePool2(POOL_FLAG_PAGED | POOL_FLAG_UNINITIALIZED, Length,
                                   TAG('I', 'o', 'S', 'B'));
    return Buffer;
}

static NOINLINE void IopProcessRequest(ULONG Random)
{
    ULONG Slot = (Random >> 8) % CHURN_RING;
    ULONG Detail = Random >> 16;

    switch (Random % 4) {
    case 0:
        if (IopIrps[Slot] != NULL)
            IopFreeIrp(IopIrps[Slot]);
        IopIrps[Slot] = IopAllocateIrpPrivate(1 + Detail % 6);
        break;
    case 1:
        if (IopFiles[Slot] != NULL)
            ObpFreeObject(IopFiles[Slot]);
        IopFiles[Slot] = ObpAllocateObject();
        break;
    case 2:
        if (IopNames[Slot] != NULL)
            ExFreePool(IopNames[Slot]);
        IopNames[Slot] = IopAllocateNameBuffer(Detail % 120);
        break;
    default:
        if (IopBuffers[Slot] != NULL)
            ExFreePool(IopBuffers[Slot]);
        IopBuffers[Slot] = IopAllocateSystemBuffer(0x100 + Detail % 0x1800);
        break;
    }
}

static void IopBackgroundThread(PVOID Context)
{
    (void)Context;
    for (;;) {
        IopLoadLateDriver();
        for (ULONG Count = 0; Count < IopOperations; Count++)
            IopProcessRequest(NextRandom(&IopRandom));
        KeDelayExecutionThread(1);
    }
}

void ExpStartBackgroundLoad(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    IopRandom = LoaderBlock->Seed | 1;
    IopOperations = (ULONG)LoaderBlock->BackgroundLoad;
    for (ULONG Number = 0; Number < LoaderBlock->ProcessorCount; Number++)
        PsCreateSystemThread(IopBackgroundThread, NULL, Number);
}
