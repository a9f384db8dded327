/* leakydrv.sys: the culprit. Three call sites allocate with the tag `Leak`; two give everything
 * back, TrackRequest does not: when a request is cancelled, FinishRequest returns early and the
 * record it should have freed stays. Completion runs on another processor than dispatch. */
#include "ntbase.h"

#define LEAK_TAG TAG('L', 'e', 'a', 'k')
#define QUEUE_LENGTH 32

typedef struct _REQUEST_RECORD {
    LIST_ENTRY Link;
    ULONG Number;
    NTSTATUS Status;
    UCHAR Payload[0x110];
} REQUEST_RECORD;

typedef struct _REQUEST_CONTEXT {
    ULONG Number;
    ULONG Length;
} REQUEST_CONTEXT;

/* Parameters, as a driver would read from its registry key; the machine sets them before boot. */
volatile ULONG LeakRequestsPerTick = 4;
volatile ULONG LeakPermille = 400;
volatile ULONG LeakSeed = 1;
volatile ULONG LeakAssertAtTick, LeakBreakAtTick, LeakBugCheckAtTick, LeakPrintEveryTicks;

/* The driver's own book-keeping. */
ULONG RequestsSeen, RequestsLeaked;

static ULONG64 Random;
static LIST_ENTRY PendingRequests;
static REQUEST_CONTEXT *ContextQueue[QUEUE_LENGTH];
static ULONG QueueHead, QueueTail;

NOINLINE REQUEST_RECORD *TrackRequest(ULONG Number)
{
    REQUEST_RECORD *Record =
        ExAllocatePool2(POOL_FLAG_NON_PAGED, sizeof(REQUEST_RECORD), LEAK_TAG);

    if (Record != NULL) {
        Record->Number = Number;
        InsertTailList(&PendingRequests, &Record->Link);
    }
    return Record;
}

NOINLINE REQUEST_CONTEXT *BuildContext(ULONG Number)
{
    /* Every eighth request carries data of its own: such a context is larger than a page. */
    ULONG Length = Number % 8 == 0 ? 0x2400 : 0x40 + (Number % 5) * 0x50;
    REQUEST_CONTEXT *Context =
        ExAllocatePoolWithTag(PagedPool, sizeof(REQUEST_CONTEXT) + Length, LEAK_TAG);

    if (Context != NULL) {
        Context->Number = Number;
        Context->Length = Length;
    }
    return Context;
}

NOINLINE void ReleaseContext(REQUEST_CONTEXT *Context)
{
    ExFreePoolWithTag(Context, LEAK_TAG);
}

NOINLINE ULONG CloneHeader(const REQUEST_RECORD *Record)
{
    ULONG Sum = 0;
    UCHAR *Copy = ExAllocatePool2(POOL_FLAG_NON_PAGED, 0x60, LEAK_TAG);

    if (Copy == NULL)
        return 0;
    for (ULONG Index = 0; Index < 0x20; Index++)
        Copy[Index] = Record->Payload[Index];
    for (ULONG Index = 0; Index < 0x20; Index++)
        Sum += Copy[Index];
    ExFreePool(Copy);
    return Sum;
}

NOINLINE void FinishRequest(REQUEST_RECORD *Record)
{
    RemoveEntryList(&Record->Link);
    if (Record->Status == STATUS_CANCELLED) {
        RequestsLeaked++;
        return; /* the bug: nobody has this record any more */
    }
    ExFreePoolWithTag(Record, LEAK_TAG);
}

NOINLINE void QueueContext(REQUEST_CONTEXT *Context)
{
    ULONG Next = (QueueHead + 1) % QUEUE_LENGTH;

    if (Context == NULL)
        return;
    if (Next == QueueTail) {
        ReleaseContext(Context);
        return;
    }
    ContextQueue[QueueHead] = Context;
    QueueHead = Next;
}

NOINLINE void HandleRequest(ULONG Number)
{
    REQUEST_RECORD *Record = TrackRequest(Number);

    if (Record == NULL)
        return;
    Record->Status = NextRandom(&Random) % 1000 < LeakPermille ? STATUS_CANCELLED : STATUS_SUCCESS;
    QueueContext(BuildContext(Number));
    CloneHeader(Record);
    FinishRequest(Record);
}

NOINLINE void DispatchRequests(ULONG Count)
{
    while (Count-- != 0) {
        RequestsSeen++;
        HandleRequest(RequestsSeen);
    }
}

static NOINLINE void CheckScheduledEvents(ULONG64 Tick)
{
    if (LeakPrintEveryTicks != 0 && Tick != 0 && Tick % LeakPrintEveryTicks == 0)
        DbgPrint("leakydrv: %u requests seen\n", RequestsSeen);
    if (UNLIKELY(Tick == LeakAssertAtTick && Tick != 0))
        __asm__ volatile("int $0x2c"); /* NT_ASSERT */
    if (UNLIKELY(Tick == LeakBreakAtTick && Tick != 0))
        DbgBreakPoint();
    if (UNLIKELY(Tick == LeakBugCheckAtTick && Tick != 0))
        KeBugCheckEx(0xDEADDEAD, 1, 2, 3, 4);
}

static void RequestWorker(PVOID Context)
{
    (void)Context;
    for (;;) {
        CheckScheduledEvents(KeQueryTickCount());
        DispatchRequests(LeakRequestsPerTick);
        KeDelayExecutionThread(1);
    }
}

NOINLINE void CompleteRequests(void)
{
    while (QueueTail != QueueHead) {
        ReleaseContext(ContextQueue[QueueTail]);
        QueueTail = (QueueTail + 1) % QUEUE_LENGTH;
    }
}

static void CompletionWorker(PVOID Context)
{
    (void)Context;
    for (;;) {
        CompleteRequests();
        KeDelayExecutionThread(2);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    Random = (ULONG64)LeakSeed | 1ULL << 40;
    InitializeListHead(&PendingRequests);
    PsCreateSystemThread(RequestWorker, NULL, 0);
    PsCreateSystemThread(CompletionWorker, NULL, 1);
    return STATUS_SUCCESS;
}
