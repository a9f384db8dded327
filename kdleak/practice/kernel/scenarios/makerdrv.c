/* makerdrv.sys: allocates messages and hands them over. It frees none itself: takerdrv does. */
#include "ntbase.h"

#define MESSAGE_TAG TAG('H', 'a', 'n', 'd')
#define QUEUE_LENGTH 64
#define EXPORTED __attribute__((dllexport))

volatile ULONG ScenarioOperationsPerTick = 1;

/* The driver's own book-keeping. */
ULONG MessagesMade;

static PVOID Queue[QUEUE_LENGTH];
static ULONG Head, Tail;

NOINLINE PVOID MakeMessage(void)
{
    PVOID Message = ExAllocatePool2(POOL_FLAG_NON_PAGED, 0x40 + MessagesMade % 7 * 0x30,
                                    MESSAGE_TAG);

    if (Message != NULL)
        MessagesMade++;
    return Message;
}

EXPORTED NOINLINE PVOID TakeMessage(void)
{
    PVOID Message;

    if (Tail == Head)
        return NULL;
    Message = Queue[Tail];
    Tail = (Tail + 1) % QUEUE_LENGTH;
    return Message;
}

NOINLINE void PostMessages(ULONG Count)
{
    while (Count-- != 0) {
        ULONG Next = (Head + 1) % QUEUE_LENGTH;
        PVOID Message = Next == Tail ? NULL : MakeMessage();

        if (Message == NULL)
            return;
        Queue[Head] = Message;
        Head = Next;
    }
}

static void MakerThread(PVOID Context)
{
    (void)Context;
    for (;;) {
        PostMessages(2 * ScenarioOperationsPerTick);
        KeDelayExecutionThread(1);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    PsCreateSystemThread(MakerThread, NULL, 0);
    return STATUS_SUCCESS;
}
