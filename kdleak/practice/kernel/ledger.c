/* The ledger: which call site allocated which block. Windows has nothing like it. It lives in
 * memory that is not part of the target's RAM, and tests compare kdleak's verdict with it. */
#include "nt.h"

static ULONG ExpLedgerSite(PVOID Caller, ULONG Tag, ULONG Pool)
{
    ULONG64 Hash = ((ULONG64)Caller ^ ((ULONG64)Tag << 1 | Pool)) * 0x9E3779B97F4A7C15ULL;
    ULONG First = (ULONG)(Hash >> 40) % LEDGER_SITES, Index = First;

    do {
        LEDGER_SITE *Site = &ExpLedger->Sites[Index];
        if (Site->ReturnAddress == 0) {
            Site->ReturnAddress = (ULONG64)Caller;
            Site->Tag = Tag;
            Site->Pool = Pool;
        }
        if (Site->ReturnAddress == (ULONG64)Caller && Site->Tag == Tag && Site->Pool == Pool)
            return Index + 1;
        Index = (Index + 1) % LEDGER_SITES;
    } while (Index != First);
    ExpLedger->Overflows++;
    return 0;
}

static USHORT *ExpLedgerUnit(PVOID Block, ULONG Pool)
{
    ULONG64 Base = Pool == 0 ? MmNonPagedPoolStart : MmPagedPoolStart;
    return &ExpLedger->Map[Pool][((ULONG64)Block - Base) >> LEDGER_UNITS_SHIFT];
}

void ExpLedgerCharge(PVOID Block, SIZE_T Bytes, ULONG Tag, ULONG Pool, PVOID Caller)
{
    ULONG Index = ExpLedgerSite(Caller, Tag, Pool);

    *ExpLedgerUnit(Block, Pool) = (USHORT)Index;
    if (Index != 0) {
        ExpLedger->Sites[Index - 1].Allocs++;
        ExpLedger->Sites[Index - 1].AllocBytes += Bytes;
    }
}

void ExpLedgerCredit(PVOID Block, SIZE_T Bytes, ULONG Pool, PVOID Caller)
{
    USHORT *Unit = ExpLedgerUnit(Block, Pool);
    ULONG Index = *Unit;

    *Unit = 0;
    if (Index != 0) {
        LEDGER_SITE *Site = &ExpLedger->Sites[Index - 1];
        ULONG FreeSite = ExpLedgerSite(Caller, Site->Tag, Pool);
        Site->Frees++;
        Site->FreeBytes += Bytes;
        if (FreeSite != 0)
            ExpLedger->Sites[FreeSite - 1].FreeCalls++;
    }
}
