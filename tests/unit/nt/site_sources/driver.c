/* A driver with one function for each way to ask for a tag. Its functions are named after what
   must be found in them: Call..., Near..., Weak..., None.... */
typedef unsigned long ULONG;
typedef unsigned long long ULONG64;
typedef __SIZE_TYPE__ SIZE_T;

#if defined(__i386__)
#define API __stdcall
#else
#define API
#endif
#define IMPORTED __declspec(dllimport)
#define KEEP __attribute__((noinline, used))

#define TAG 0x6b61654cu /* 'Leak' */
#define PROTECTED 0x80000000u

IMPORTED void *API ExAllocatePoolWithTag(ULONG type, SIZE_T size, ULONG tag);
IMPORTED void *API ExAllocatePool2(ULONG64 flags, SIZE_T size, ULONG tag);
IMPORTED void API ExFreePoolWithTag(void *block, ULONG tag);
IMPORTED void API ExInitializeNPagedLookasideList(void *list, void *allocate, void *free,
                                                  ULONG flags, SIZE_T size, ULONG tag,
                                                  unsigned short depth);
IMPORTED int API DbgPrompt(const char *text, SIZE_T size, ULONG number);
void *API ExAllocatePoolWithQuotaTag(ULONG type, SIZE_T size, ULONG tag); /* through a thunk */

volatile ULONG Sink;
void *volatile Kept;
char List[512];
ULONG TagsInData[] = {0x11111111, TAG, 0x22222222};

KEEP void *CallDirect(SIZE_T size) {
  void *block = ExAllocatePoolWithTag(512, size, TAG);
  Kept = block;
  return block;
}

KEEP void *CallTail(SIZE_T size) { return ExAllocatePoolWithTag(512, size, TAG); }

KEEP void *CallWide(SIZE_T size) {
  void *block = ExAllocatePool2(64, size, TAG);
  Sink++;
  return block;
}

KEEP void *CallThunk(SIZE_T size) {
  void *block = ExAllocatePoolWithQuotaTag(512, size, TAG);
  Sink++;
  return block;
}

KEEP void CallFree(void *block) {
  ExFreePoolWithTag(block, TAG);
  Sink++;
}

KEEP void CallProtected(void *block) {
  ExFreePoolWithTag(block, TAG | PROTECTED);
  Sink++;
}

KEEP void CallLookaside(void) {
  ExInitializeNPagedLookasideList(List, 0, 0, 0, 64, TAG, 0);
  Sink++;
}

/* The tag is loaded in two places and meets at one call; another tag must not be found. */
KEEP void *CallBranches(SIZE_T size) {
  ULONG tag = size > 100 ? TAG : 0x21212121;
  void *block = ExAllocatePoolWithTag(512, size, tag);
  Sink = size > 100;
  return block;
}

/* Twice in a row: compilers keep tag and routine in registers that calls preserve. */
KEEP void CallTwice(SIZE_T size) {
  Kept = ExAllocatePoolWithTag(512, size, TAG);
  Kept = ExAllocatePoolWithTag(1, size + 8, TAG);
  Kept = ExAllocatePoolWithTag(1, size + 80, TAG);
  Sink++;
}

/* The tag goes elsewhere, the allocation near it has another one. */
KEEP void *NearOtherTag(SIZE_T size) {
  Sink = TAG;
  return ExAllocatePoolWithTag(512, size, 0x31313131);
}

KEEP int WeakCompare(ULONG value) { return value == TAG ? 7 : 1; }

KEEP int WeakOtherRoutine(void) {
  int answer = DbgPrompt("x", 1, TAG);
  Sink++;
  return answer;
}

KEEP ULONG NoneComputed(ULONG base) { return base * 3; }

KEEP ULONG NoneReadsTable(int index) { return TagsInData[index]; }

int DriverEntry(void) {
  CallDirect(1);
  CallTail(2);
  CallWide(3);
  CallThunk(4);
  CallFree(Kept);
  CallProtected(Kept);
  CallLookaside();
  CallBranches(Sink);
  CallTwice(Sink);
  NearOtherTag(Sink);
  return WeakCompare(Sink) + WeakOtherRoutine() + (int)NoneComputed(Sink) +
         (int)NoneReadsTable((int)Sink);
}
