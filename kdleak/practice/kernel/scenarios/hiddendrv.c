/* hiddendrv.sys: leaks sessions behind five framework frames. All its memory comes from
 * FltAllocateContext, so no call of its own into the pool allocator can be found. A session that
 * is cancelled is never closed. */
#include "layers.h"

#define OPEN_SESSIONS 16

typedef struct _SESSION {
    ULONG64 Number;
    UCHAR State[0x98];
} SESSION;

volatile ULONG ScenarioOperationsPerTick = 1;
volatile ULONG ScenarioLeakPermille = 400;
volatile ULONG ScenarioSeed = 1;

/* The driver's own book-keeping. */
ULONG SessionsOpened, SessionsClosed, SessionsLost;

static ULONG64 Random;
static SESSION *Open[OPEN_SESSIONS];
static ULONG OpenCount;

NOINLINE SESSION *OpenSession(void)
{
    SESSION *Session = FltAllocateContext(sizeof(SESSION), SESSION_TAG);

    if (Session != NULL)
        Session->Number = SessionsOpened++;
    return Session;
}

NOINLINE void CloseSession(SESSION *Session)
{
    FltReleaseContext(Session, SESSION_TAG);
    SessionsClosed++;
}

NOINLINE void HiddenPreCreate(ULONG64 Tick)
{
    (void)Tick;
    while (OpenCount != 0)
        CloseSession(Open[--OpenCount]);
    for (ULONG Count = ScenarioOperationsPerTick; Count != 0; Count--) {
        SESSION *Session = OpenSession();
        if (Session == NULL)
            return;
        if (OpenCount == OPEN_SESSIONS || NextRandom(&Random) % 1000 < ScenarioLeakPermille)
            SessionsLost++; /* the bug: it was cancelled, and nobody closes it */
        else
            Open[OpenCount++] = Session;
    }
}

NTSTATUS DriverEntry(PVOID DriverObject, PVOID RegistryPath)
{
    (void)DriverObject;
    (void)RegistryPath;
    Random = (ULONG64)ScenarioSeed << 4 | 1;
    FltRegisterFilter(HiddenPreCreate);
    return STATUS_SUCCESS;
}
