/* Processors, threads and the clock: just enough of a kernel for real stacks to exist.
 *
 * Scheduling is cooperative. A thread runs until it delays itself; the idle thread of a processor
 * looks for a thread whose time has come and halts when there is none. The machine delivers one
 * clock interrupt per tick to a halted processor. Nothing is preempted and only one processor
 * runs at a time, so no lock is needed anywhere and every run with the same seed is the same. */
#include "nt.h"

LOADER_PARAMETER_BLOCK *KeLoaderBlock;
PKPRCB KiProcessorBlock[MAXIMUM_PROCESSORS];
ULONG KeNumberProcessors;
EPROCESS KiInitialProcess;
PEPROCESS PsInitialSystemProcess;
LIST_ENTRY PsActiveProcessHead;
LIST_ENTRY PsLoadedModuleList;
ULONG KeTimeIncrement;
volatile ULONG64 KeTickCount;
ULONG64 KiWaitNever, KiWaitAlways;
ULONG KiIdleThreads;

#define XSTR(x) STR(x)
#define STR(x) #x
char NtBuildLab[] = XSTR(PRACTICE_BUILD) ".1.amd64fre.practice";
ULONG NtBuildNumber = 0xF0000000 | PRACTICE_BUILD;

static ETHREAD KiIdleThread[MAXIMUM_PROCESSORS];
/* Never used: keeps types in the symbol file that debuggers look up by name. */
__attribute__((used)) static LDR_DATA_TABLE_ENTRY *KiTypesForDebuggers;
__attribute__((used)) static KLDR_DATA_TABLE_ENTRY *KiMoreTypesForDebuggers;
static PKTHREAD KiThreads[MAXIMUM_THREADS];
static ULONG KiThreadCount;

#define SHARED_DATA 0xFFFFF78000000000ULL
#define SHARED(type, offset) (*(volatile type *)(SHARED_DATA + (offset)))

static void KiWriteSystemTime(ULONG Offset, ULONG64 Value)
{
    SHARED(ULONG, Offset + 8) = (ULONG)(Value >> 32);
    SHARED(ULONG, Offset) = (ULONG)Value;
    SHARED(ULONG, Offset + 4) = (ULONG)(Value >> 32);
}

static ULONG64 KiStackTop(ULONG Index)
{
    return KeLoaderBlock->StackBase + (ULONG64)(Index + 1) * (KERNEL_STACK_SIZE + PAGE_SIZE);
}

static void KiInitializeThread(PETHREAD Ethread, ULONG StackIndex, ULONG Processor)
{
    PKTHREAD Thread = &Ethread->Tcb;
    ULONG64 Top = KiStackTop(StackIndex);

    Thread->Header.Type = 6;
    Thread->InitialStack = (PVOID)Top;
    Thread->StackBase = (PVOID)Top;
    Thread->StackLimit = (PVOID)(Top - KERNEL_STACK_SIZE);
    Thread->ApcState.Process = &KiInitialProcess.Pcb;
    Thread->Process = &KiInitialProcess.Pcb;
    Thread->NextProcessor = Processor;
    Thread->Affinity = Processor;
    Thread->State = 5;
    Ethread->Cid.UniqueProcess = (PVOID)4;
    Ethread->Cid.UniqueThread = (PVOID)(8 + 4 * (ULONG64)StackIndex);
    Ethread->CreateTime = KeLoaderBlock->SystemTime;
    InsertTailList(&KiInitialProcess.Pcb.ThreadListHead, &Thread->ThreadListEntry);
    InsertTailList(&KiInitialProcess.ThreadListHead, &Ethread->ThreadListEntry);
    KiInitialProcess.ActiveThreads++;
}

NTSTATUS PsCreateSystemThread(KSTART_ROUTINE *Start, PVOID Context, ULONG Processor)
{
    PETHREAD Thread;
    ULONG64 *Frame;
    ULONG Index = KiThreadCount;

    if (Index >= MAXIMUM_THREADS - MAXIMUM_PROCESSORS)
        return STATUS_INSUFFICIENT_RESOURCES;
    Thread = ExAllocatePool2(POOL_FLAG_NON_PAGED, sizeof(ETHREAD), TAG('T', 'h', 'r', 'e'));
    if (Thread == NULL)
        return STATUS_INSUFFICIENT_RESOURCES;
    KiInitializeThread(Thread, Index + MAXIMUM_PROCESSORS, Processor % KeNumberProcessors);
    Thread->StartAddress = Start;
    Thread->Win32StartAddress = Start;
    Thread->StartContext = Context;
    /* What KiSwapContext pops: eight registers, then KiStartSystemThread; above it lies the
     * return address 0 that ends a stack walk. The room above it is what a real thread has there
     * (its initial frame); debuggers read stacks in blocks that would else end past the stack. */
    Frame = (ULONG64 *)((ULONG64)Thread->Tcb.InitialStack - 0x140) - 10;
    memset(Frame, 0, 18 * sizeof(ULONG64));
    Frame[8] = (ULONG64)KiStartSystemThread;
    Thread->Tcb.KernelStack = Frame;
    KiThreads[Index] = &Thread->Tcb;
    KiThreadCount = Index + 1;
    return STATUS_SUCCESS;
}

__attribute__((used)) NOINLINE void PspSystemThreadStartup(KSTART_ROUTINE *Start, PVOID Context)
{
    Start(Context);
    KeBugCheckEx(0xE7, (ULONG_PTR)Start, 0, 0, 0);
}

static PKTHREAD KiFindReadyThread(PKPRCB Prcb)
{
    for (ULONG Index = 0; Index < KiThreadCount; Index++) {
        PKTHREAD Thread = KiThreads[Index];
        if (Thread->Affinity == Prcb->Number && Thread->State == 5 &&
            Thread->WakeTick <= KeTickCount)
            return Thread;
    }
    return NULL;
}

static NOINLINE void KiSwapThread(PKPRCB Prcb, PKTHREAD Old, PKTHREAD New)
{
    Prcb->CurrentThread = New;
    Prcb->ContextSwitches++;
    New->State = 2;
    KiSwapContext(Old, New);
}

static NOINLINE void KiCommitThreadWait(PKTHREAD Thread)
{
    PKPRCB Prcb = KeGetCurrentPrcb();

    Thread->State = 5;
    KiSwapThread(Prcb, Thread, Prcb->IdleThread);
}

NOINLINE void KeDelayExecutionThread(ULONG Ticks)
{
    PKTHREAD Thread = KeGetCurrentPrcb()->CurrentThread;

    Thread->WakeTick = KeTickCount + Ticks;
    KiCommitThreadWait(Thread);
}

NOINLINE void PoIdle(PKPRCB Prcb)
{
    Prcb->IdleHalt = 1;
    KiHalt();
    Prcb->IdleHalt = 0;
}

void KiIdleLoop(void)
{
    PKPRCB Prcb = KeGetCurrentPrcb();

    for (;;) {
        PKTHREAD Thread = KiFindReadyThread(Prcb);
        if (Thread != NULL)
            KiSwapThread(Prcb, Prcb->IdleThread, Thread);
        else
            PoIdle(Prcb);
    }
}

NOINLINE void KeUpdateSystemTime(PKPRCB Prcb)
{
    if (Prcb->ClockOwner) {
        ULONG64 Elapsed;
        KeTickCount = KeTickCount + 1;
        Elapsed = KeTickCount * KeTimeIncrement;
        KiWriteSystemTime(0x008, Elapsed);
        KiWriteSystemTime(0x014, KeLoaderBlock->SystemTime + Elapsed);
        KiWriteSystemTime(0x320, KeTickCount);
        SHARED(ULONG, 0) = (ULONG)KeTickCount;
    }
    KdCheckForDebugBreak();
}

NOINLINE void KeClockInterruptNotify(PKPRCB Prcb)
{
    KeUpdateSystemTime(Prcb);
    Prcb->PendingTick = 0;
}

NOINLINE void HalpTimerClockInterrupt(PKPRCB Prcb)
{
    KeClockInterruptNotify(Prcb);
    Prcb->InterruptRequest = 0;
}

/* The machine sets this when somebody presses the keys for a manual crash. */
volatile UCHAR KiCrashRequested;

static NOINLINE void KiProcessCrashRequest(void)
{
    if (UNLIKELY(KiCrashRequested))
        KeBugCheckEx(0xE2, 0, 0, 0, 0); /* MANUALLY_INITIATED_CRASH */
}

__attribute__((used)) NOINLINE void KiCallInterruptServiceRoutine(void)
{
    PKPRCB Prcb = KeGetCurrentPrcb();
    UCHAR Irql = KeGetPcr()->Irql;

    Prcb->InterruptCount++;
    KeGetPcr()->Irql = 13;
    HalpTimerClockInterrupt(Prcb);
    KiProcessCrashRequest();
    KeGetPcr()->Irql = Irql;
}

ULONG KeGetCurrentProcessorNumberEx(PVOID Reserved)
{
    (void)Reserved;
    return KeGetCurrentPrcb()->Number;
}

ULONG KeQueryActiveProcessorCount(PVOID Reserved)
{
    (void)Reserved;
    return KeNumberProcessors;
}

ULONG64 KeQueryTickCount(void)
{
    return KeTickCount;
}

void KiInitializeProcessor(LOADER_PARAMETER_BLOCK *LoaderBlock, ULONG Number)
{
    PKPRCB Prcb = KeGetCurrentPrcb();
    PETHREAD Ethread = &KiIdleThread[Number];
    PKTHREAD Idle = &Ethread->Tcb;
    static const char Vendor[] = "GenuineIntel";

    (void)LoaderBlock;
    Prcb->MxCsr = 0x1F80;
    Prcb->LegacyNumber = (UCHAR)Number;
    Prcb->Number = Number;
    Prcb->ClockOwner = Number == 0;
    Prcb->MHz = 2400;
    Prcb->CpuType = 6;
    Prcb->Context = Prcb->ContextFrame;
    memcpy(Prcb->VendorString, Vendor, sizeof(Vendor));
    KiInitializeThread(Ethread, Number, Number);
    Ethread->Cid.UniqueProcess = NULL;
    Ethread->Cid.UniqueThread = NULL;
    Idle->State = 2;
    Prcb->IdleThread = Idle;
    Prcb->CurrentThread = Idle;
    Prcb->RspBase = (ULONG64)Idle->InitialStack;
    KiProcessorBlock[Number] = Prcb;
}

static void KiInitializeSharedData(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    static const char Root[] = "C:\\Windows";

    SHARED(ULONG, 0x004) = 0x0FA00000;
    SHARED(USHORT, 0x02C) = 0x8664;
    SHARED(USHORT, 0x02E) = 0x8664;
    for (ULONG Index = 0; Index < sizeof(Root); Index++)
        SHARED(WCHAR, 0x030 + 2 * Index) = (WCHAR)Root[Index];
    SHARED(ULONG, 0x260) = PRACTICE_BUILD;
    SHARED(ULONG, 0x264) = 1;
    SHARED(UCHAR, 0x268) = 1;
    SHARED(USHORT, 0x26A) = 9;
    SHARED(ULONG, 0x26C) = 10;
    SHARED(ULONG, 0x270) = 0;
    SHARED(ULONG, 0x2D0) = 0x110;
    SHARED(UCHAR, 0x2D4) = 3;
    SHARED(ULONG, 0x2E8) = (ULONG)LoaderBlock->PhysicalPages;
    SHARED(ULONG, 0x3C0) = (ULONG)LoaderBlock->ProcessorCount;
    KiWriteSystemTime(0x014, LoaderBlock->SystemTime);
}

static void PsInitSystem(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    static const char Name[] = "System";

    InitializeListHead(&PsActiveProcessHead);
    KiInitialProcess.Pcb.Header.Type = 3;
    KiInitialProcess.Pcb.DirectoryTableBase = LoaderBlock->Cr3;
    KiInitialProcess.UniqueProcessId = (PVOID)4;
    memcpy(KiInitialProcess.ImageFileName, Name, sizeof(Name));
    InitializeListHead(&KiInitialProcess.Pcb.ThreadListHead);
    InitializeListHead(&KiInitialProcess.ThreadListHead);
    InsertTailList(&PsActiveProcessHead, &KiInitialProcess.ActiveProcessLinks);
    PsInitialSystemProcess = &KiInitialProcess;
    /* The machine linked the entries around a head of its own: take them over. */
    PsLoadedModuleList = *LoaderBlock->LoadOrderList;
    PsLoadedModuleList.Flink->Blink = &PsLoadedModuleList;
    PsLoadedModuleList.Blink->Flink = &PsLoadedModuleList;
}

static void IopLoadDrivers(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    for (ULONG Index = 0; Index < 8 && LoaderBlock->DriverEntry[Index] != 0; Index++) {
        NTSTATUS (*Entry)(PVOID, PVOID) = (void *)LoaderBlock->DriverEntry[Index];
        Entry(NULL, NULL);
    }
}

/* One driver may come later, to show a debugger an image load in a running system. */
static NOINLINE void MmLoadSystemImage(KLDR_DATA_TABLE_ENTRY *Entry)
{
    InsertTailList(&PsLoadedModuleList, &Entry->InLoadOrderLinks);
    DbgLoadImageSymbols(Entry);
}

NOINLINE void IopLoadLateDriver(void)
{
    KLDR_DATA_TABLE_ENTRY *Entry = (void *)KeLoaderBlock->LateEntry;
    NTSTATUS (*Initialize)(PVOID, PVOID);

    if (KeLoaderBlock->LateTick == 0 || KeTickCount < KeLoaderBlock->LateTick)
        return;
    KeLoaderBlock->LateTick = 0;
    MmLoadSystemImage(Entry);
    Initialize = Entry->EntryPoint;
    Initialize(NULL, NULL);
}

/* Called by KiSystemStartup, once per processor, processor 0 first. */
__attribute__((used)) NOINLINE void KiInitializeKernel(LOADER_PARAMETER_BLOCK *LoaderBlock,
                                                       ULONG Number)
{
    if (Number == 0) {
        KeLoaderBlock = LoaderBlock;
        KeNumberProcessors = (ULONG)LoaderBlock->ProcessorCount;
        KeTimeIncrement = (ULONG)LoaderBlock->TimeIncrement;
        KiWaitNever = LoaderBlock->Seed * 0x9E3779B97F4A7C15ULL;
        KiWaitAlways = KiWaitNever ^ 0xD1B54A32D192ED03ULL;
        KiInitializeSharedData(LoaderBlock);
        PsInitSystem(LoaderBlock);
        KiInitializeProcessor(LoaderBlock, 0);
        MmInitSystem(LoaderBlock);
        InitializePool(LoaderBlock);
        KdInitSystem(LoaderBlock);
        ExpCreatePopulation(LoaderBlock);
        ExpStartBackgroundLoad(LoaderBlock);
        IopLoadDrivers(LoaderBlock);
    } else {
        KiInitializeProcessor(LoaderBlock, Number);
    }
    KiIdleLoop();
}
