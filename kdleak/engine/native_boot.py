"""Attaching while the target boots: boot applications come first, each a debuggee of its own."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.engine.native_run import TargetRun
from kdleak.engine.native_signals import HoldSignals
from kdleak.engine.native_target import is_windows
from kdleak.errors import TargetRestarted, UnsupportedTarget
from kdleak.kd.host import KdHost
from kdleak.kd.structures import Version
from kdleak.model import StopKind

_SLICE = 3.0  # seconds a boot application may run before it is asked again


def await_windows(
    host: KdHost,
    run: TargetRun,
    hold: HoldSignals,
    clock: Callable[[], float],
    deadline: float,
) -> Version:
    """GetVersion, letting a boot application run on until it has started Windows.

    Args:
        host: attached, the target stopped.
        run: its running and stopping.
        hold: keeps Ctrl+C out of requests.
        clock: seconds, monotonic.
        deadline: on that clock.

    Raises:
        UnsupportedTarget: no Windows by then.
        LinkLost: while waiting.
    """
    while True:
        with hold:
            version = host.get_version()
        if is_windows(version):
            return version
        if clock() >= deadline:
            raise UnsupportedTarget(
                "attaching",
                "the target is in its boot application, not in Windows",
                "let it boot, then attach again",
            )
        try:
            stop = run.resume(min(_SLICE, max(deadline - clock(), 0.1)))
            if stop.kind is StopKind.STILL_RUNNING:
                run.interrupt(max(deadline - clock(), 1.0))
        except TargetRestarted:
            # The next stage of the boot introduces itself anew.
            run.attach(max(deadline - clock(), 1.0))
