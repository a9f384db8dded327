/* The kernel's side of debugging: the data block clients read, break-in polling, DbgPrint and the
 * bug check. The wire protocol itself is spoken by practice/stub.py. */
#include "nt.h"

UCHAR KdDebuggerEnabled = 1, KdDebuggerNotPresent = 1;
volatile UCHAR KdpControlCPending;
ULONG_PTR KiBugCheckData[5];
UCHAR KdpDataBlockEncoded;
UCHAR KdpBootedNodebug;

typedef struct _KDDEBUGGER_DATA64 {
    LIST_ENTRY List;
    ULONG OwnerTag;
    ULONG Size;
    ULONG64 Fields[113];
} KDDEBUGGER_DATA64;
_Static_assert(sizeof(KDDEBUGGER_DATA64) == 0x3A0, "KDBG");

KDDEBUGGER_DATA64 KdDebuggerDataBlock;
LIST_ENTRY KdpDebuggerDataListHead;

/* Places the data block points at although nothing here uses them. */
ULONG64 MmPfnDatabase, MmTotalCommitLimit, MmTotalCommittedPages, MmAvailablePagesUnused;
ULONG64 MmHighestUserAddress = 0x00007FFFFFFEFFFFULL, MmSystemRangeStart = 0xFFFF800000000000ULL;
ULONG64 MmUserProbeAddress = 0x00007FFFFFFF0000ULL;
ULONG MmSpecialPoolTag, ExpNumberOfPagedPools = 1;
PVOID MmUnloadedDrivers;
ULONG MmLastUnloadedDriver;
PVOID PspCidTable, NonPagedPoolDescriptor, ExpPagedPoolDescriptor;
ULONG CmNtCSDVersion;

extern UCHAR RtlpBreakWithStatusInstruction[];
extern ULONG KeTimeIncrement;

#define SET64(offset, value) (*(ULONG64 *)((UCHAR *)&KdDebuggerDataBlock + (offset)) = (ULONG64)(value))
#define SET16(offset, value) (*(USHORT *)((UCHAR *)&KdDebuggerDataBlock + (offset)) = (USHORT)(value))

void KdInitSystem(LOADER_PARAMETER_BLOCK *LoaderBlock)
{
    InitializeListHead(&KdpDebuggerDataListHead);
    InsertTailList(&KdpDebuggerDataListHead, &KdDebuggerDataBlock.List);
    KdDebuggerDataBlock.OwnerTag = TAG('K', 'D', 'B', 'G');
    KdDebuggerDataBlock.Size = sizeof(KdDebuggerDataBlock);
    SET64(0x018, LoaderBlock->KernelBase);
    SET64(0x020, RtlpBreakWithStatusInstruction);
    SET16(0x036, 4 << 2); /* four paging levels */
    SET64(0x048, &PsLoadedModuleList);
    SET64(0x050, &PsActiveProcessHead);
    SET64(0x058, &PspCidTable);
    SET64(0x068, &ExpPagedPoolDescriptor);
    SET64(0x070, &ExpNumberOfPagedPools);
    SET64(0x078, &KeTimeIncrement);
    SET64(0x088, KiBugCheckData);
    SET64(0x0C0, &MmPfnDatabase);
    SET64(0x0E8, &MmLowestPhysicalPage);
    SET64(0x0F0, &MmHighestPhysicalPage);
    SET64(0x0F8, &MmNumberOfPhysicalPages);
    SET64(0x100, &MmMaximumNonPagedPoolInBytes);
    SET64(0x110, &MmNonPagedPoolStart);
    SET64(0x118, &MmNonPagedPoolEnd);
    SET64(0x120, &MmPagedPoolStart);
    SET64(0x128, &MmPagedPoolEnd);
    SET64(0x138, PAGE_SIZE);
    SET64(0x140, &MmSizeOfPagedPoolInBytes);
    SET64(0x148, &MmTotalCommitLimit);
    SET64(0x150, &MmTotalCommittedPages);
    SET64(0x1A8, &MmAvailablePages);
    SET64(0x1B8, &PoolTrackTable);
    SET64(0x1C0, &NonPagedPoolDescriptor);
    SET64(0x1C8, &MmHighestUserAddress);
    SET64(0x1D0, &MmSystemRangeStart);
    SET64(0x1D8, &MmUserProbeAddress);
    SET64(0x208, NtBuildLab);
    SET64(0x218, KiProcessorBlock);
    SET64(0x220, &MmUnloadedDrivers);
    SET64(0x228, &MmLastUnloadedDriver);
    SET64(0x238, &MmSpecialPoolTag);
    SET64(0x250, &MmAllocatedNonPagedPool);
    SET64(0x268, &CmNtCSDVersion);
    SET64(0x270, &MmPhysicalMemoryBlock);
    SET16(0x298, FIELD_OFFSET(KTHREAD, NextProcessor));
    SET16(0x29A, FIELD_OFFSET(KTHREAD, Teb));
    SET16(0x29C, FIELD_OFFSET(KTHREAD, KernelStack));
    SET16(0x29E, FIELD_OFFSET(KTHREAD, InitialStack));
    SET16(0x2A0, FIELD_OFFSET(KTHREAD, ApcState.Process));
    SET16(0x2A2, FIELD_OFFSET(KTHREAD, State));
    SET16(0x2A8, sizeof(EPROCESS));
    SET16(0x2AA, FIELD_OFFSET(EPROCESS, Peb));
    SET16(0x2AE, FIELD_OFFSET(EPROCESS, Pcb.DirectoryTableBase));
    SET16(0x2B0, sizeof(KPRCB));
    SET16(0x2B4, FIELD_OFFSET(KPRCB, CurrentThread));
    SET16(0x2B6, FIELD_OFFSET(KPRCB, MHz));
    SET16(0x2B8, FIELD_OFFSET(KPRCB, CpuType));
    SET16(0x2BA, FIELD_OFFSET(KPRCB, VendorString));
    SET16(0x2BC, FIELD_OFFSET(KPRCB, ContextFrame));
    SET16(0x2BE, FIELD_OFFSET(KPRCB, Number));
    SET16(0x2C0, sizeof(ETHREAD));
    SET64(0x2D8, &KeLoaderBlock);
    SET16(0x2E0, sizeof(KPCR));
    SET16(0x2E2, FIELD_OFFSET(KPCR, Self));
    SET16(0x2E4, FIELD_OFFSET(KPCR, CurrentPrcb));
    SET16(0x2E6, FIELD_OFFSET(KPCR, Prcb));
    SET16(0x2F2, FIELD_OFFSET(KPRCB, SpecialRegisters));
    SET16(0x2F4, 0x10); /* selectors: kernel code */
    SET16(0x2F6, 0x18); /* kernel data */
    SET16(0x2FA, 0x33); /* user code */
    SET16(0x2FC, 0x2B); /* user data */
    SET16(0x302, 0x40); /* TSS */
    SET16(0x304, 0x23); /* user code, 32 bit */
    SET16(0x306, 0x53); /* user TEB, 32 bit */
    SET16(0x338, FIELD_OFFSET(KPRCB, Context));
    SET16(0x33A, 4);
    SET64(0x360, MmPteBase);
    KdDebuggerNotPresent = 0;
}

NOINLINE BOOLEAN KdPollBreakIn(void)
{
    UCHAR Pending = KdpControlCPending;

    KdpControlCPending = 0;
    return Pending != 0;
}

NOINLINE void KdCheckForDebugBreak(void)
{
    if (KdPollBreakIn())
        DbgBreakPointWithStatus(1);
}

/* ---- DbgPrint: %s %c %d %u %x %p and the l and ll widths ---- */
typedef __builtin_va_list va_list;

static void KdpPut(char *Buffer, ULONG *Length, ULONG Limit, char Character)
{
    if (*Length < Limit)
        Buffer[(*Length)++] = Character;
}

static void KdpPutNumber(char *Buffer, ULONG *Length, ULONG Limit, ULONG64 Value, ULONG Base,
                         ULONG Width)
{
    char Digits[24];
    ULONG Count = 0;

    do {
        Digits[Count++] = "0123456789abcdef"[Value % Base];
        Value /= Base;
    } while (Value != 0);
    while (Count < Width)
        Digits[Count++] = '0';
    while (Count != 0)
        KdpPut(Buffer, Length, Limit, Digits[--Count]);
}

static ULONG KdpFormat(char *Buffer, ULONG Limit, PCSTR Format, va_list Arguments)
{
    ULONG Length = 0;

    for (; *Format != 0; Format++) {
        ULONG Long = 0;
        if (*Format != '%') {
            KdpPut(Buffer, &Length, Limit, *Format);
            continue;
        }
        for (Format++; *Format == 'l'; Format++)
            Long++;
        if (*Format == 's') {
            for (PCSTR Text = __builtin_va_arg(Arguments, PCSTR); *Text != 0; Text++)
                KdpPut(Buffer, &Length, Limit, *Text);
        } else if (*Format == 'p') {
            KdpPutNumber(Buffer, &Length, Limit, __builtin_va_arg(Arguments, ULONG64), 16, 16);
        } else if (*Format == 'x' || *Format == 'u' || *Format == 'd') {
            ULONG64 Value = Long == 2 ? __builtin_va_arg(Arguments, ULONG64)
                                      : __builtin_va_arg(Arguments, ULONG);
            KdpPutNumber(Buffer, &Length, Limit, Value, *Format == 'x' ? 16 : 10, 0);
        } else if (*Format == 'c') {
            KdpPut(Buffer, &Length, Limit, (char)__builtin_va_arg(Arguments, ULONG));
        } else if (*Format != 0) {
            KdpPut(Buffer, &Length, Limit, *Format);
        } else {
            break;
        }
    }
    return Length;
}

NOINLINE ULONG DbgPrint(PCSTR Format, ...)
{
    char Buffer[256];
    va_list Arguments;
    ULONG Length;

    __builtin_va_start(Arguments, Format);
    Length = KdpFormat(Buffer, sizeof(Buffer), Format, Arguments);
    __builtin_va_end(Arguments);
    return DebugService(1, Buffer, Length); /* BREAKPOINT_PRINT */
}

/* ---- image loads ---- */
NOINLINE void DbgLoadImageSymbols(const KLDR_DATA_TABLE_ENTRY *Entry)
{
    DebugService(3, (PCSTR)Entry, 0); /* BREAKPOINT_LOAD_SYMBOLS */
}

/* ---- bug check ---- */
#define DBG_STATUS_BUGCHECK_FIRST 3
#define DBG_STATUS_BUGCHECK_SECOND 4

/* The second break comes again and again: there is nothing to go back to. */
static NOINLINE void KiBugCheckDebugBreak(ULONG Status)
{
    do {
        DbgBreakPointWithStatus(Status);
        KiHalt();
    } while (Status != DBG_STATUS_BUGCHECK_FIRST);
}

/* Called by KeBugCheckEx (kestubs.S), which has saved the registers. */
__attribute__((used)) NOINLINE void KeBugCheck2(ULONG Code, ULONG_PTR P1, ULONG_PTR P2, ULONG_PTR P3,
                                                ULONG_PTR P4)
{
    KiBugCheckData[0] = Code;
    KiBugCheckData[1] = P1;
    KiBugCheckData[2] = P2;
    KiBugCheckData[3] = P3;
    KiBugCheckData[4] = P4;
    DbgPrint("\n*** Fatal System Error: 0x%x\n                       (0x%p,0x%p,0x%p,0x%p)\n\n", Code, P1,
             P2, P3, P4);
    KiBugCheckDebugBreak(DBG_STATUS_BUGCHECK_FIRST);
    KiBugCheckDebugBreak(DBG_STATUS_BUGCHECK_SECOND);
}
