/* What the outermost practice framework offers the drivers above it. The names are those of a
 * layer found on every Windows machine; the code is ours and does no more than pass calls on. */
#pragma once
#include "ntbase.h"

#define SESSION_TAG TAG('F', 'm', 'w', 'k')

typedef void PRE_OPERATION(ULONG64 Tick);

#ifdef INSIDE_FLTMGR
#define FLTAPI __attribute__((dllexport)) NOINLINE
#else
#define FLTAPI __attribute__((dllimport))
#endif

FLTAPI PVOID FltAllocateContext(SIZE_T Bytes, ULONG Tag);
FLTAPI void FltReleaseContext(PVOID P, ULONG Tag);
FLTAPI void FltRegisterFilter(PRE_OPERATION *PreOperation);
