/* The routines that driver.c imports: an image that exports them. */
typedef unsigned long ULONG;
typedef unsigned long long ULONG64;
typedef __SIZE_TYPE__ SIZE_T;
#if defined(__i386__)
#define API __stdcall
#else
#define API
#endif
#define EXPORTED __declspec(dllexport) __attribute__((noinline))

volatile SIZE_T Counter;

EXPORTED void *API ExAllocatePoolWithTag(ULONG type, SIZE_T size, ULONG tag) {
  Counter += type + size + tag;
  return (void *)Counter;
}
EXPORTED void *API ExAllocatePoolWithQuotaTag(ULONG type, SIZE_T size, ULONG tag) {
  Counter += type * size + tag;
  return (void *)Counter;
}
EXPORTED void *API ExAllocatePool2(ULONG64 flags, SIZE_T size, ULONG tag) {
  Counter += (SIZE_T)flags + size * tag;
  return (void *)Counter;
}
EXPORTED void API ExFreePoolWithTag(void *block, ULONG tag) { Counter -= (SIZE_T)block + tag; }
EXPORTED void API ExInitializeNPagedLookasideList(void *list, void *allocate, void *free,
                                                  ULONG flags, SIZE_T size, ULONG tag,
                                                  unsigned short depth) {
  Counter += (SIZE_T)list + (SIZE_T)allocate + (SIZE_T)free + flags + size + tag + depth;
}
EXPORTED int API DbgPrompt(const char *text, SIZE_T size, ULONG number) {
  Counter += text[0] + size + number;
  return 1;
}

/* nt's own use, by a plain call. */
EXPORTED void *API IoAllocateSomething(SIZE_T size) {
  void *block = ExAllocatePoolWithTag(1, size, 0x6b61654c);
  Counter++;
  return block;
}
