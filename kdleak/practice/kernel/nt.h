/* Inside the practice kernel: structures and the functions its files share.
 * Where a structure has a Windows name, the fields present lie at their Windows 11 x64 offsets
 * (checked below); fields nobody reads are left out as padding. */
#pragma once
#include "ntbase.h"

#define PAGE_SIZE 0x1000ULL
#define MAXIMUM_PROCESSORS 2
#define MAXIMUM_THREADS 12
#define KERNEL_STACK_SIZE 0x6000

/* ---- boot loader block: filled by the machine (practice/boot.py keeps the same layout) ---- */
typedef struct _LOADER_POOL_REGION {
    ULONG64 Base;
    ULONG64 Pages;
} LOADER_POOL_REGION;

typedef struct _LOADER_PARAMETER_BLOCK {
    ULONG64 Signature;          /* 000 */
    ULONG64 KernelBase;         /* 008 */
    ULONG64 KernelSize;         /* 010 */
    LIST_ENTRY *LoadOrderList;  /* 018 head of the KLDR entries the machine wrote */
    ULONG64 PteBase;            /* 020 self-map */
    ULONG64 FirstFreePage;      /* 028 page frame numbers the kernel may hand out ... */
    ULONG64 LastFreePage;       /* 030 ... up to here (exclusive) */
    LOADER_POOL_REGION Pool[2]; /* 038 nonpaged, paged */
    ULONG64 StackBase;          /* 058 MAXIMUM_THREADS stacks, each preceded by a guard page */
    ULONG64 ProcessorCount;     /* 060 */
    ULONG64 Pcr[MAXIMUM_PROCESSORS]; /* 068 */
    ULONG64 Seed;               /* 078 */
    ULONG64 TrackerRows;        /* 080 PoolTrackTableSize, 2^n + 1 */
    ULONG64 ExpansionRows;      /* 088 most rows PoolTrackTableExpansion may get */
    ULONG64 BigPageRows;        /* 090 PoolBigPageTableSize at boot */
    ULONG64 Ledger;             /* 098 address of the LEDGER, outside the target's RAM */
    ULONG64 SystemTime;         /* 0A0 100 ns units since 1601 at tick 0 */
    ULONG64 TimeIncrement;      /* 0A8 100 ns units per tick */
    ULONG64 Cr3;                /* 0B0 */
    ULONG64 PhysicalPages;      /* 0B8 */
    ULONG64 DriverEntry[8];     /* 0C0 entry points, in load order, 0 = end */
    ULONG64 CounterBias;        /* 100 added to allocs and frees of one tag, to see 32 bits wrap */
    ULONG64 Population;         /* 108 percent of the static population to create */
    ULONG64 BackgroundLoad;     /* 110 operations per tick of the kernel's own churn */
    ULONG64 LateTick;           /* 118 tick at which the late driver is loaded, 0 = none */
    ULONG64 LateEntry;          /* 120 KLDR entry of the late driver, not in the list yet */
} LOADER_PARAMETER_BLOCK;
CHECK_OFFSET(LOADER_PARAMETER_BLOCK, Pcr, 0x68);
CHECK_OFFSET(LOADER_PARAMETER_BLOCK, DriverEntry, 0xC0);
CHECK_OFFSET(LOADER_PARAMETER_BLOCK, LateEntry, 0x120);

/* ---- the ledger: ground truth for tests, kept beside the real tables ---- */
#define LEDGER_SITES 512
#define LEDGER_UNITS_SHIFT 4

typedef struct _LEDGER_SITE {
    ULONG64 ReturnAddress; /* of the call into the allocator; 0 = unused */
    ULONG Tag;
    ULONG Pool;            /* 0 nonpaged, 1 paged */
    ULONG64 Allocs;
    ULONG64 Frees;         /* of blocks this site allocated, wherever they were freed */
    ULONG64 AllocBytes;    /* as charged to the tag */
    ULONG64 FreeBytes;
    ULONG64 FreeCalls;     /* calls that free, made at this return address */
    ULONG64 Reserved;
} LEDGER_SITE;

typedef struct _LEDGER {
    LEDGER_SITE Sites[LEDGER_SITES];
    USHORT *Map[2];        /* per pool: site index + 1 of the block at each 16-byte unit */
    ULONG64 Overflows;     /* calls that found no free row in Sites */
} LEDGER;
_Static_assert(sizeof(LEDGER_SITE) == 0x40, "LEDGER_SITE");

/* ---- processors ---- */
typedef struct _KTHREAD KTHREAD, *PKTHREAD;
typedef struct _KPROCESS KPROCESS, *PKPROCESS;
typedef struct _ETHREAD ETHREAD, *PETHREAD;
typedef struct _EPROCESS EPROCESS, *PEPROCESS;

typedef struct _KPRCB {
    ULONG MxCsr;                  /* 000 */
    UCHAR LegacyNumber;           /* 004 */
    UCHAR ReservedMustBeZero;
    UCHAR InterruptRequest;
    UCHAR IdleHalt;
    PKTHREAD CurrentThread;       /* 008 */
    PKTHREAD NextThread;          /* 010 */
    PKTHREAD IdleThread;          /* 018 */
    UCHAR NestingLevel;           /* 020 */
    UCHAR ClockOwner;
    UCHAR PendingTickFlags;
    UCHAR PendingTick;
    ULONG Number;                 /* 024 */
    ULONG64 RspBase;              /* 028 */
    ULONG64 PrcbLock;             /* 030 */
    PVOID PriorityState;          /* 038 */
    UCHAR SpecialRegisters[0xF0]; /* 040 ProcessorState */
    UCHAR ContextFrame[0x4D0];    /* 130 */
    PVOID Context;                /* 600 stands in for the pointer the debugger is told about */
    ULONG64 InterruptCount;       /* 608 */
    ULONG64 ContextSwitches;      /* 610 */
    ULONG MHz;                    /* 618 */
    UCHAR VendorString[16];       /* 61C */
    UCHAR CpuType;                /* 62C */
    UCHAR Reserved[0x53];
} KPRCB, *PKPRCB;
CHECK_OFFSET(KPRCB, Number, 0x24);
CHECK_OFFSET(KPRCB, ContextFrame, 0x130);
CHECK_OFFSET(KPRCB, VendorString, 0x61C);

typedef struct _KPCR {
    PVOID GdtBase;       /* 000 */
    PVOID TssBase;       /* 008 */
    ULONG64 UserRsp;     /* 010 */
    struct _KPCR *Self;  /* 018 */
    PKPRCB CurrentPrcb;  /* 020 */
    PVOID LockArray;     /* 028 */
    PVOID Used_Self;     /* 030 */
    PVOID IdtBase;       /* 038 */
    ULONG64 Unused[2];   /* 040 */
    UCHAR Irql;          /* 050 */
    UCHAR Padding[0x12F];
    KPRCB Prcb;          /* 180 */
} KPCR, *PKPCR;
CHECK_OFFSET(KPCR, Irql, 0x50);
CHECK_OFFSET(KPCR, Prcb, 0x180);

/* ---- threads and processes ---- */
typedef struct _DISPATCHER_HEADER {
    UCHAR Type; /* 3 process, 6 thread */
    UCHAR Signalling;
    UCHAR Size;
    UCHAR Reserved1;
    LONG SignalState;
    LIST_ENTRY WaitListHead;
} DISPATCHER_HEADER;

typedef struct _KAPC_STATE {
    LIST_ENTRY ApcListHead[2]; /* 00 */
    PKPROCESS Process;         /* 20 */
    UCHAR InProgressFlags;
    UCHAR KernelApcPending;
    UCHAR UserApcPendingAll;
} KAPC_STATE;

typedef struct _CLIENT_ID {
    PVOID UniqueProcess;
    PVOID UniqueThread;
} CLIENT_ID;

struct _KTHREAD {
    DISPATCHER_HEADER Header;   /* 000 */
    PVOID SListFaultAddress;    /* 018 */
    ULONG64 QuantumTarget;      /* 020 */
    PVOID InitialStack;         /* 028 */
    PVOID volatile StackLimit;  /* 030 */
    PVOID StackBase;            /* 038 */
    ULONG64 ThreadLock;         /* 040 */
    ULONG64 CycleTime;          /* 048 */
    ULONG CurrentRunTime;       /* 050 */
    ULONG ExpectedRunTime;      /* 054 */
    PVOID KernelStack;          /* 058 */
    UCHAR Reserved060[0x38];
    KAPC_STATE ApcState;        /* 098 */
    UCHAR Reserved0C8[0x28];
    PVOID Teb;                  /* 0F0 */
    UCHAR Reserved0F8[0x8C];
    UCHAR State;                /* 184 2 running, 5 waiting */
    UCHAR Reserved185[0x9B];
    PKPROCESS Process;          /* 220 */
    UCHAR Reserved228[0x1C];
    ULONG NextProcessor;        /* 244 */
    UCHAR Reserved248[0x40];
    ULONG64 WakeTick;           /* 288 practice only */
    ULONG Affinity;             /* 290 practice only */
    UCHAR Reserved294[0x64];
    LIST_ENTRY ThreadListEntry; /* 2F8 */
    UCHAR Reserved308[0x128];
};
CHECK_OFFSET(KTHREAD, KernelStack, 0x58);
CHECK_OFFSET(KTHREAD, ApcState.Process, 0xB8);
CHECK_OFFSET(KTHREAD, State, 0x184);
CHECK_OFFSET(KTHREAD, Process, 0x220);
CHECK_OFFSET(KTHREAD, ThreadListEntry, 0x2F8);

struct _ETHREAD {
    KTHREAD Tcb;                  /* 000 */
    ULONG64 CreateTime;           /* 430 */
    ULONG64 ExitTime;             /* 438 */
    UCHAR Reserved440[0x10];
    KSTART_ROUTINE *StartAddress; /* 450 */
    PVOID StartContext;           /* 458 practice only */
    UCHAR Reserved460[0x18];
    CLIENT_ID Cid;                /* 478 */
    UCHAR Reserved488[0x48];
    PVOID Win32StartAddress;      /* 4D0 */
    UCHAR Reserved4D8[0x10];
    LIST_ENTRY ThreadListEntry;   /* 4E8 */
    UCHAR Reserved4F8[0x58];
};
CHECK_OFFSET(ETHREAD, StartAddress, 0x450);
CHECK_OFFSET(ETHREAD, Cid, 0x478);
CHECK_OFFSET(ETHREAD, ThreadListEntry, 0x4E8);

struct _KPROCESS {
    DISPATCHER_HEADER Header;   /* 000 */
    LIST_ENTRY ProfileListHead; /* 018 */
    ULONG64 DirectoryTableBase; /* 028 */
    LIST_ENTRY ThreadListHead;  /* 030 */
    UCHAR Reserved040[0x348];
    ULONG64 UserDirectoryTableBase; /* 388 */
    UCHAR Reserved390[0xA8];
};
CHECK_OFFSET(KPROCESS, UserDirectoryTableBase, 0x388);

struct _EPROCESS {
    KPROCESS Pcb;               /* 000 */
    ULONG64 ProcessLock;        /* 438 */
    PVOID UniqueProcessId;      /* 440 */
    LIST_ENTRY ActiveProcessLinks; /* 448 */
    UCHAR Reserved458[0xC0];
    PVOID WoW64Process;         /* 518 */
    PVOID SectionBaseAddress;   /* 520 */
    UCHAR Reserved528[0x18];
    PVOID InheritedFromUniqueProcessId; /* 540 */
    UCHAR Reserved548[0x8];
    PVOID Peb;                  /* 550 */
    UCHAR Reserved558[0x50];
    UCHAR ImageFileName[15];    /* 5A8 */
    UCHAR PriorityClass;
    UCHAR Reserved5B8[0x28];
    LIST_ENTRY ThreadListHead;  /* 5E0 */
    ULONG ActiveThreads;        /* 5F0 */
    UCHAR Reserved5F4[0x4C];
};
CHECK_OFFSET(EPROCESS, UniqueProcessId, 0x440);
CHECK_OFFSET(EPROCESS, ActiveProcessLinks, 0x448);
CHECK_OFFSET(EPROCESS, Peb, 0x550);
CHECK_OFFSET(EPROCESS, ImageFileName, 0x5A8);
CHECK_OFFSET(EPROCESS, ThreadListHead, 0x5E0);

/* ---- loaded images ---- */
typedef struct _KLDR_DATA_TABLE_ENTRY {
    LIST_ENTRY InLoadOrderLinks;  /* 00 */
    PVOID ExceptionTable;         /* 10 */
    ULONG ExceptionTableSize;     /* 18 */
    PVOID GpValue;                /* 20 */
    PVOID NonPagedDebugInfo;      /* 28 */
    PVOID DllBase;                /* 30 */
    PVOID EntryPoint;             /* 38 */
    ULONG SizeOfImage;            /* 40 */
    UNICODE_STRING FullDllName;   /* 48 */
    UNICODE_STRING BaseDllName;   /* 58 */
    ULONG Flags;                  /* 68 */
    USHORT LoadCount;             /* 6C */
    USHORT Reserved;
    PVOID SectionPointer;         /* 70 */
    ULONG CheckSum;               /* 78 */
    ULONG CoverageSectionSize;    /* 7C */
    PVOID CoverageSection;        /* 80 */
    PVOID LoadedImports;          /* 88 */
    PVOID Spare;                  /* 90 */
    ULONG SizeOfImageNotRounded;  /* 98 */
    ULONG TimeDateStamp;          /* 9C */
} KLDR_DATA_TABLE_ENTRY;
CHECK_OFFSET(KLDR_DATA_TABLE_ENTRY, BaseDllName, 0x58);
CHECK_OFFSET(KLDR_DATA_TABLE_ENTRY, TimeDateStamp, 0x9C);

/* The user-mode sibling: same place for the fields both have. Clients look it up by name. */
typedef struct _LDR_DATA_TABLE_ENTRY {
    LIST_ENTRY InLoadOrderLinks;           /* 00 */
    LIST_ENTRY InMemoryOrderLinks;         /* 10 */
    LIST_ENTRY InInitializationOrderLinks; /* 20 */
    PVOID DllBase;                         /* 30 */
    PVOID EntryPoint;                      /* 38 */
    ULONG SizeOfImage;                     /* 40 */
    UNICODE_STRING FullDllName;            /* 48 */
    UNICODE_STRING BaseDllName;            /* 58 */
    ULONG Flags;                           /* 68 */
    USHORT ObsoleteLoadCount;              /* 6C */
    USHORT TlsIndex;                       /* 6E */
    LIST_ENTRY HashLinks;                  /* 70 */
    ULONG TimeDateStamp;                   /* 80 */
} LDR_DATA_TABLE_ENTRY;
CHECK_OFFSET(LDR_DATA_TABLE_ENTRY, BaseDllName, 0x58);

/* ---- variables ---- */
extern LOADER_PARAMETER_BLOCK *KeLoaderBlock;
extern LIST_ENTRY PsLoadedModuleList, PsActiveProcessHead;
extern PKPRCB KiProcessorBlock[MAXIMUM_PROCESSORS];
extern ULONG KeNumberProcessors;
extern EPROCESS KiInitialProcess;
extern PEPROCESS PsInitialSystemProcess;
extern char NtBuildLab[];
extern ULONG NtBuildNumber;
extern ULONG64 MmNonPagedPoolStart, MmNonPagedPoolEnd, MmPagedPoolStart, MmPagedPoolEnd;
extern ULONG64 MmPteBase, MmAllocatedNonPagedPool, MmAvailablePages;
extern ULONG64 MmNumberOfPhysicalPages, MmLowestPhysicalPage, MmHighestPhysicalPage;
extern PVOID MmPhysicalMemoryBlock;
extern ULONG64 MmSizeOfPagedPoolInBytes, MmMaximumNonPagedPoolInBytes;
extern volatile ULONG PoolHitTag;
extern PVOID PoolTrackTable;
extern ULONG_PTR KiBugCheckData[5];
extern UCHAR KdDebuggerEnabled, KdDebuggerNotPresent;
extern LEDGER *ExpLedger;

/* ---- functions ---- */
static inline PKPCR KeGetPcr(void)
{
    PKPCR Pcr;
    __asm__ volatile("movq %%gs:0x18, %0" : "=r"(Pcr));
    return Pcr;
}

static inline PKPRCB KeGetCurrentPrcb(void)
{
    PKPRCB Prcb;
    __asm__ volatile("movq %%gs:0x20, %0" : "=r"(Prcb));
    return Prcb;
}

static inline void KiHalt(void)
{
    __asm__ volatile("hlt" ::: "memory");
}

void *memset(void *Destination, int Value, SIZE_T Length);
void *memcpy(void *Destination, const void *Source, SIZE_T Length);

void KdInitSystem(LOADER_PARAMETER_BLOCK *LoaderBlock);
void KdCheckForDebugBreak(void);
void DbgBreakPointWithStatus(ULONG Status);
ULONG DebugService(ULONG Service, PCSTR Text, ULONG Length);
void DbgLoadImageSymbols(const KLDR_DATA_TABLE_ENTRY *Entry);

void MmInitSystem(LOADER_PARAMETER_BLOCK *LoaderBlock);
BOOLEAN MiMapPages(ULONG64 Address, ULONG64 Pages);
ULONG64 MiAllocatePoolPages(ULONG Pool, ULONG64 Pages);
void MiFreePoolPages(ULONG Pool, ULONG64 Address, ULONG64 Pages);
ULONG64 MiPoolPages(ULONG Pool);

void InitializePool(LOADER_PARAMETER_BLOCK *LoaderBlock);
void ExpInitializeTrackers(LOADER_PARAMETER_BLOCK *LoaderBlock);
void ExpInsertPoolTracker(ULONG Tag, SIZE_T Bytes, ULONG Pool);
void ExpRemovePoolTracker(ULONG Tag, SIZE_T Bytes, ULONG Pool);
void ExpBiasPoolTracker(ULONG Tag, ULONG64 Count);
BOOLEAN ExpAddTagForBigPages(ULONG64 Va, ULONG Tag, SIZE_T Bytes, ULONG PoolType);
BOOLEAN ExpFindAndRemoveTagBigPages(ULONG64 Va, ULONG *Tag, SIZE_T *Bytes);

void ExpLedgerCharge(PVOID Block, SIZE_T Bytes, ULONG Tag, ULONG Pool, PVOID Caller);
void ExpLedgerCredit(PVOID Block, SIZE_T Bytes, ULONG Pool, PVOID Caller);

void ExpCreatePopulation(LOADER_PARAMETER_BLOCK *LoaderBlock);
void ExpStartBackgroundLoad(LOADER_PARAMETER_BLOCK *LoaderBlock);
void IopLoadLateDriver(void);

void KiInitializeProcessor(LOADER_PARAMETER_BLOCK *LoaderBlock, ULONG Number);
void KiSwapContext(PKTHREAD Old, PKTHREAD New);
void KiStartSystemThread(void);
__attribute__((noreturn)) void KiIdleLoop(void);
