/* Basic types and the pool interface: all that a driver of the practice kernel may use.
 * Names, values and prototypes are those of the Windows Driver Kit's documentation. */
#pragma once

typedef unsigned char UCHAR, BOOLEAN;
typedef unsigned short USHORT, WCHAR;
typedef unsigned int ULONG;
typedef int LONG;
typedef long long LONG64;
typedef unsigned long long ULONG64, SIZE_T, ULONG_PTR;
typedef void *PVOID;
typedef const char *PCSTR;
typedef LONG NTSTATUS;

#define NULL ((void *)0)
#define TRUE 1
#define FALSE 0
#define STATUS_SUCCESS ((NTSTATUS)0x00000000)
#define STATUS_CANCELLED ((NTSTATUS)0xC0000120)
#define STATUS_INSUFFICIENT_RESOURCES ((NTSTATUS)0xC000009A)

#define NOINLINE __attribute__((noinline))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TAG(a, b, c, d) \
    ((ULONG)(UCHAR)(a) | (ULONG)(UCHAR)(b) << 8 | (ULONG)(UCHAR)(c) << 16 | (ULONG)(UCHAR)(d) << 24)

#define FIELD_OFFSET(type, field) __builtin_offsetof(type, field)
#define CHECK_OFFSET(type, field, offset) \
    _Static_assert(FIELD_OFFSET(type, field) == (offset), #type "." #field)

typedef struct _LIST_ENTRY {
    struct _LIST_ENTRY *Flink;
    struct _LIST_ENTRY *Blink;
} LIST_ENTRY, *PLIST_ENTRY;

typedef struct _UNICODE_STRING {
    USHORT Length;
    USHORT MaximumLength;
    WCHAR *Buffer;
} UNICODE_STRING;

static inline void InitializeListHead(PLIST_ENTRY Head)
{
    Head->Flink = Head;
    Head->Blink = Head;
}

static inline void InsertTailList(PLIST_ENTRY Head, PLIST_ENTRY Entry)
{
    Entry->Flink = Head;
    Entry->Blink = Head->Blink;
    Head->Blink->Flink = Entry;
    Head->Blink = Entry;
}

static inline void RemoveEntryList(PLIST_ENTRY Entry)
{
    Entry->Blink->Flink = Entry->Flink;
    Entry->Flink->Blink = Entry->Blink;
}

static inline BOOLEAN IsListEmpty(const LIST_ENTRY *Head)
{
    return Head->Flink == Head;
}

/* POOL_TYPE of ExAllocatePoolWithTag. */
typedef enum _POOL_TYPE {
    NonPagedPool = 0,
    PagedPool = 1,
    NonPagedPoolNx = 0x200,
} POOL_TYPE;

/* POOL_FLAGS of ExAllocatePool2 and ExAllocatePool3. */
#define POOL_FLAG_UNINITIALIZED 0x0000000000000002ULL
#define POOL_FLAG_NON_PAGED 0x0000000000000040ULL
#define POOL_FLAG_PAGED 0x0000000000000100ULL

typedef void KSTART_ROUTINE(PVOID StartContext);

#ifdef PRACTICE_KERNEL
#define NTKERNELAPI
#else
#define NTKERNELAPI __attribute__((dllimport))
#endif

NTKERNELAPI PVOID ExAllocatePool(ULONG PoolType, SIZE_T NumberOfBytes);
NTKERNELAPI PVOID ExAllocatePoolWithTag(ULONG PoolType, SIZE_T NumberOfBytes, ULONG Tag);
NTKERNELAPI PVOID ExAllocatePool2(ULONG64 Flags, SIZE_T NumberOfBytes, ULONG Tag);
NTKERNELAPI PVOID ExAllocatePool3(ULONG64 Flags, SIZE_T NumberOfBytes, ULONG Tag,
                                  const void *ExtendedParameters, ULONG Count);
NTKERNELAPI void ExFreePool(PVOID P);
NTKERNELAPI void ExFreePoolWithTag(PVOID P, ULONG Tag);
NTKERNELAPI void KeDelayExecutionThread(ULONG Ticks);
NTKERNELAPI NTSTATUS PsCreateSystemThread(KSTART_ROUTINE *Start, PVOID Context, ULONG Processor);
NTKERNELAPI ULONG KeGetCurrentProcessorNumberEx(PVOID Reserved);
NTKERNELAPI ULONG KeQueryActiveProcessorCount(PVOID Reserved);
NTKERNELAPI ULONG64 KeQueryTickCount(void);
NTKERNELAPI ULONG DbgPrint(PCSTR Format, ...);
NTKERNELAPI void DbgBreakPoint(void);
NTKERNELAPI __attribute__((noreturn)) void KeBugCheckEx(ULONG Code, ULONG_PTR P1, ULONG_PTR P2,
                                                       ULONG_PTR P3, ULONG_PTR P4);

/* Deterministic noise for the workloads (xorshift64*). */
static inline ULONG NextRandom(ULONG64 *State)
{
    ULONG64 x = *State;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *State = x;
    return (ULONG)((x * 0x2545F4914F6CDD1DULL) >> 32);
}
