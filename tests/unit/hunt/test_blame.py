"""On whose behalf a stack allocates."""

from __future__ import annotations

import pytest

from kdleak.blamed import LayerUse
from kdleak.blaming.blame import blame
from kdleak.blaming.frameworks import built_in_frameworks
from kdleak.model import Frame, Stack, Symbolized


def stack(*names: str) -> Stack:
    frames = []
    for index, text in enumerate(("nt!ExAllocateHeapPool", "nt!ExAllocatePool2", *names)):
        module, _, name = text.partition("!")
        address = 0xFFFFF80000000000 + index
        frames.append(Frame(address, 0, Symbolized(address, module, name, 5)))
    return Stack(tuple(frames))


def blamed(*names: str) -> str:
    symbols = stack(*names)
    symbol = symbols.frames[blame(symbols).index].symbol
    return f"{symbol.module}!{symbol.name}" if symbol.name else symbol.module


def test_five_framework_frames_are_looked_through_and_told() -> None:
    found = blame(
        stack(
            "Wdf01000!FxPoolAllocate",
            "Wdf01000!imp_WdfMemoryCreate",
            "ndis!NdisAllocate",
            "NETIO!NetioAllocate",
            "nt!IofCallDriver",
            "hiddendrv!Open",
            "fltmgr!FltpPerformPreCallbacks",
        )
    )
    assert found.index == 7
    assert found.found
    assert found.through == (
        LayerUse("Wdf01000", "KMDF", 2),
        LayerUse("ndis", "NDIS", 1),
        LayerUse("NETIO", "network I/O subsystem", 1),
        LayerUse("nt", "I/O manager", 1),
    )


@pytest.mark.parametrize(
    "origin",
    [
        "nt!KiRetireDpcList",
        "nt!KxRetireDpcList",
        "nt!KiExecuteAllDpcs",
        "nt!KiDpcInterrupt",
        "nt!KiInterruptDispatchNoLockNoEtw",
        "nt!KiDeliverApc",
        "nt!ExpWorkerThread",
        "nt!IopProcessWorkItem",
        "nt!PspSystemThreadStartup",
        "nt!KiSystemServiceCopyEnd",
    ],
)
def test_who_was_only_interrupted_is_not_blamed(origin: str) -> None:
    names = ("ndis!NdisAllocate", "NETIO!Net", origin, "bystander!Work")
    assert blamed(*names) == "NETIO!Net"
    assert not blame(stack(*names)).found
    assert blamed("ndis!NdisAllocate", "drv!Receive", origin, "bystander!Work") == "drv!Receive"


def test_frames_without_a_name_are_passed_over() -> None:
    assert blamed("ndis!A", "", "nt", "drv!F") == "drv!F"
    assert blamed("ndis!A", "drv") == "drv"


def test_a_users_own_wrapper_is_looked_through() -> None:
    frameworks = built_in_frameworks().through(["drv!MyAlloc*"])
    symbols = stack("drv!MyAllocate", "drv!Open")
    assert blame(symbols).index == 2
    assert blame(symbols, frameworks).index == 3


@pytest.mark.parametrize(
    ("names", "whom"),
    [
        (["drv!F", "nt!IofCallDriver"], "drv!F"),
        (["Wdf01000!FxPool", "Wdf01000!imp_WdfRequestCreate", "drv!F", "nt!X"], "drv!F"),
        (["ndis!NdisAllocate", "NETIO!Net", "tcpip!Tcp"], "tcpip!Tcp"),
        # The File objects of a recorded session: helpers of nt all the way to the system call.
        (
            [
                "nt!ObpAllocateObject",
                "nt!ObCreateObject",
                "nt!IopParseDevice",
                "nt!ObpLookupObjectName",
                "nt!ObOpenObjectByName",
                "nt!IopCreateFile",
                "nt!IoCreateFile",
                "nt!NtOpenFile",
                "nt!KiSystemCallEntry64",
                "ntdll!ZwOpenFile",
            ],
            "nt!NtOpenFile",
        ),
        (["nt!SeCaptureSid", "nt!KiSystemServiceCopyEnd", "ntdll!Nt"], "nt!SeCaptureSid"),
        (["Wdf01000!A", "Wdf01000!B"], "Wdf01000!B"),
    ],
)
def test_whom_a_stack_blames(names: list[str], whom: str) -> None:
    assert blamed(*names) == whom


def test_a_stack_of_nothing_but_the_allocator_blames_its_end() -> None:
    assert blame(stack()).index == 1
    assert not blame(stack()).found
