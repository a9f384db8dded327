"""Runs the practice target on a connection: what ``kdleak practice`` calls, and a plain program.

``python -m kdleak.practice.run net:host=127.0.0.1,port=50000,key=1.2.3.4`` waits for a debugger
on KDNET, ``python -m kdleak.practice.run tcp:5678`` on a byte stream. SIGTERM and SIGINT end it;
SIGUSR1 has it print the truth about every call site as it is at that moment.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields

from kdleak.errors import ExitCode, KdleakError
from kdleak.kd.connection import open_target
from kdleak.kd.link import TargetLink
from kdleak.practice.images import BUILDS, DEFAULT_BUILD
from kdleak.practice.ledger import CallSite, truth_as_json
from kdleak.practice.statistics import PracticeStatistics
from kdleak.practice.target import DEFAULT_RATE, PracticeTarget
from kdleak.practice.workload import Workload


@dataclass(frozen=True)
class PracticeResult:
    """What is left of a practice run.

    Attributes:
        statistics: counters of the run.
        ground_truth: the truth about every call site of the allocator.
    """

    statistics: PracticeStatistics
    ground_truth: tuple[CallSite, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values, for other programs."""
        statistics = self.statistics
        return {
            "statistics": {
                **{
                    field.name: getattr(statistics, field.name)
                    for field in fields(statistics)
                    if field.name != "requests"
                },
                "requests": statistics.requests_by_name(),
            },
            "ground_truth": truth_as_json(self.ground_truth),
        }


def run_practice(
    connection: str,
    *,
    seed: int = 1,
    build: int = DEFAULT_BUILD,
    processors: int = 2,
    rate: float = DEFAULT_RATE,
    workload: Workload | None = None,
    until: Callable[[], bool] | None = None,
    on_ready: Callable[[PracticeTarget], None] | None = None,
) -> PracticeResult:
    """Boot a practice machine on a connection and run it until told to end.

    Args:
        connection: target role's connection string (``kd.connection.open_target``).
        seed: chooses addresses and all random behaviour.
        build: Windows build it claims.
        processors: 1 or 2.
        rate: ticks per second of wall time, 0 for as fast as possible.
        workload: what the machine does.
        until: looked at often; True ends the run. Without it the run ends by
            :meth:`PracticeTarget.stop` or KeyboardInterrupt.
        on_ready: called once with the booted target, before it runs.

    Raises:
        BadConnection, PortInUse, UsageError: before anything runs.
        LinkLost: the medium itself is gone (not: a debugger that went away).
    """

    def open_link() -> TargetLink:
        return open_target(connection)

    link = open_link()
    try:
        target = PracticeTarget(
            link,
            seed=seed,
            build=build,
            processors=processors,
            rate=rate,
            workload=workload,
            # A booting machine offers itself on KDNET anew; a serial line just stays there.
            reopen=open_link if link.where.startswith("net") else None,
        )
    except BaseException:
        link.close()
        raise
    try:
        if on_ready is not None:
            on_ready(target)
        with suppress(KeyboardInterrupt):
            target.run(until)
        return PracticeResult(target.statistics, target.ground_truth())
    finally:
        target.close()


def show_books(target: PracticeTarget) -> None:
    """Print the truth about every call site as it is now: one line of JSON."""
    sys.stdout.write(json.dumps(truth_as_json(target.ground_truth())) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kdleak.practice.run", description=__doc__)
    parser.add_argument("connection", help="net:host=IP,port=N,key=K or tcp:PORT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=int, default=DEFAULT_BUILD, choices=BUILDS)
    parser.add_argument("--processors", type=int, default=2, choices=(1, 2))
    parser.add_argument("--rate", type=float, default=DEFAULT_RATE, help="ticks per second, 0: all")
    parser.add_argument("--json", action="store_true", help="print the result as JSON at the end")
    group = parser.add_argument_group("workload")
    for field in fields(Workload):
        option = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, str):
            group.add_argument(option, default=field.default, metavar="NAME")
        else:
            group.add_argument(option, type=int, default=field.default, metavar="N")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run as a program; ends at SIGINT or SIGTERM."""
    options = _parser().parse_args(arguments)
    workload = Workload(**{field.name: getattr(options, field.name) for field in fields(Workload)})

    def ready(target: PracticeTarget) -> None:
        signal.signal(signal.SIGTERM, lambda *_: target.stop())
        signal.signal(signal.SIGINT, lambda *_: target.stop())
        if hasattr(signal, "SIGUSR1"):  # not on Windows
            signal.signal(signal.SIGUSR1, lambda *_: show_books(target))
        sys.stdout.write(f"practice target ready on {target.link.where}\n")
        sys.stdout.flush()

    try:
        result = run_practice(
            options.connection,
            seed=options.seed,
            build=options.build,
            processors=options.processors,
            rate=options.rate,
            workload=workload,
            on_ready=ready,
        )
    except KdleakError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if options.json:
        json.dump(result.as_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(result.statistics.lines()) + "\n")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
