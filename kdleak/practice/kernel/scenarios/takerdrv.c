/* takerdrv.sys: takes the messages makerdrv made, and frees them, on another processor. */
#include "ntbase.h"

#define MESSAGE_TAG TAG('H', 'a', 'n', 'd')

__attribute__((dllimport)) PVOID TakeMessage(void);

/* The driver's own book-keeping. */
ULONG MessagesFreed;

NOINLINE void ConsumeMessages(void)
{
    PVOID Message;

    while ((Message = TakeMessage()) != NULL) {
        ExFreePoolWithTag(Message, MESSAGE_TAG);
        MessagesFreed++;
    }
}

static void TakerThread(PVOID Context)
{
    (void)Context;
    for (;;) {
        ConsumeMessages();
        KeDelayExecutionThread(3);
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    PsCreateSystemThread(TakerThread, NULL, 1);
    return STATUS_SUCCESS;
}
