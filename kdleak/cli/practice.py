"""``kdleak practice``: run the bundled practice kernel as a debug target."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from kdleak import __version__
from kdleak.cli.practice_dump import DumpOptions, dump_options, write_dump
from kdleak.cli.target_options import FiniteRange
from kdleak.errors import ExitCode, MissingDependency, UsageError
from kdleak.kd.connection import parse_connection
from kdleak.report.sanitise import sanitise
from kdleak.windbg.session import KEY_VARIABLE

if TYPE_CHECKING:
    from kdleak.practice.crash import CrashDump
    from kdleak.practice.ledger import CallSite
    from kdleak.practice.target import PracticeTarget

_HEAD = {
    "format": "kdleak.practice",
    "format_version": "1.0",
    "generator": {"name": "kdleak", "version": __version__},
}


@click.command("practice")
@click.option(
    "--kdnet",
    metavar="HOST:PORT",
    help="Look for a debugger over KDNET at this address.",
)
@click.option(
    "--key",
    metavar="W.X.Y.Z",
    help=f"The KDNET key; taken from ${KEY_VARIABLE} when not given.",
)
@click.option("--serial", metavar="tcp:PORT", help="Wait for a debugger on a TCP port (raw KD).")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses everything random.")
@click.option(
    "--build",
    type=click.Choice(["15063", "19045", "22621", "26100"]),
    default="22621",
    show_default=True,
    help="Windows build to be: each has another layout of the tag tables.",
)
@click.option(
    "--processors", type=click.IntRange(1, 2), default=2, show_default=True, help="Processors."
)
@click.option(
    "--scenario",
    type=click.Choice(["frameworks", "handover", "cache"]),
    help="Load further drivers. frameworks: a leak (tag Fmwk) behind five framework frames; "
    "handover: blocks (Hand) that another driver frees; cache: one (Warm) that fills up.",
)
@click.option(
    "--rate",
    type=FiniteRange(min=0),
    default=100.0,
    show_default=True,
    metavar="TICKS",
    help="Clock ticks per second; 0 runs as fast as it can.",
)
@click.option("--until-eof", is_flag=True, help="End when standard input is closed (for scripts).")
@click.option("--json", "as_json", is_flag=True, help="Print the final counters as JSON.")
@dump_options
def command(
    kdnet: Optional[str],
    key: Optional[str],
    serial: Optional[str],
    seed: int,
    build: str,
    processors: int,
    scenario: Optional[str],
    rate: float,
    until_eof: bool,
    as_json: bool,
    dump_file: Optional[Path],
    dump_kind: Optional[str],
    ticks: Optional[int],
    memory: Optional[float],
    workload: tuple[str, ...],
    no_kdbg: bool,
    encoded_kdbg: bool,
    force: bool,
) -> int:
    """Run the practice kernel: a small simulated NT kernel with a driver that leaks.

    It does what a Windows machine with kernel debugging enabled does: it looks for a debugger,
    runs meanwhile, and stands still at every break until a debugger lets it go on. Ctrl+C ends
    it; it then prints what it was asked and how long it stood still.

    \b
    Examples:
      kdleak practice --kdnet 127.0.0.1:50000 --key 1.2.3.4
      kdleak practice --serial tcp:4555
    and in another terminal:
      kdleak hunt -k net:port=50000,key=1.2.3.4
      kdleak hunt -k com:ipport=4555,port=127.0.0.1
    Or a crash dump of it, without a debugger:
      kdleak practice --dump MEMORY.DMP
    """
    options = DumpOptions(
        dump_file, dump_kind, ticks, memory, workload, no_kdbg, encoded_kdbg, force
    )
    if dump_file is not None:
        if kdnet is not None or serial is not None:
            raise UsageError(
                "writing a dump of the practice kernel",
                "it runs without a debugger for that",
                "leave --kdnet and --serial out",
            )
        try:
            dump = write_dump(
                options,
                seed=seed,
                build=int(build),
                processors=processors,
                scenario=scenario or "",
            )
        except ImportError as error:
            raise _no_practice(error) from error
        return _show_dump(dump, as_json=as_json)
    options.refuse_without_dump()
    connection, hint = _connection(kdnet, key, serial)
    try:
        from kdleak.practice.run import run_practice  # noqa: PLC0415 - needs an extra
        from kdleak.practice.workload import Workload  # noqa: PLC0415 - as is this
    except ImportError as error:
        raise _no_practice(error) from error

    def ready(target: PracticeTarget) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: target.stop())
        if until_eof:
            threading.Thread(target=_stop_at_eof, args=(target,), daemon=True).start()
        click.echo(
            f"practice target ready on {target.link.where}; in another terminal: {hint}", err=True
        )

    result = run_practice(
        connection,
        seed=seed,
        build=int(build),
        processors=processors,
        rate=rate,
        workload=Workload(scenario=scenario or ""),
        on_ready=ready,
    )
    if as_json:
        click.echo(json.dumps({**_HEAD, **result.as_json()}, indent=1))
    else:
        click.echo("\n".join(result.statistics.lines()))
        _echo_truth(result.ground_truth)
    return ExitCode.DONE


def _show_dump(dump: CrashDump, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({**_HEAD, **dump.as_json()}, indent=1))
        return ExitCode.DONE
    click.echo(
        sanitise(
            f"{dump.path.name}: {dump.kind.title}, {dump.pages:,} pages, {dump.size:,} bytes; "
            f"bug check 0x{dump.bug_check.code:x} after {dump.ticks} ticks"
        )
    )
    _echo_truth(dump.ground_truth)
    return ExitCode.DONE


def _echo_truth(sites: Iterable[CallSite]) -> None:
    for site in sites:
        if site.tag.text in {"Leak", "Busy", "Fmwk", "Hand", "Warm"} and site.allocs:
            name = f"{site.module}!{site.function}+0x{site.offset:x}"
            click.echo(
                sanitise(
                    f"'{site.tag}' {name}: {site.allocs} allocated, {site.frees} freed, "
                    f"{site.outstanding} blocks and {site.bytes:,} bytes outstanding"
                )
            )


def _no_practice(error: ImportError) -> MissingDependency:
    return MissingDependency(
        "starting the practice kernel",
        f"the package {error.name} is not installed",
        'pip install "kdleak[practice]"',
    )


def _connection(kdnet: Optional[str], key: Optional[str], serial: Optional[str]) -> tuple[str, str]:
    """The target's connection string, and what to type to attach to it (without the key)."""
    if (kdnet is None) == (serial is None):
        raise UsageError(
            "choosing the practice target's link",
            "one of --kdnet, --serial and --dump is needed",
            "kdleak practice --kdnet 127.0.0.1:50000 --key 1.2.3.4",
        )
    if serial is not None:
        kind, _, port = serial.partition(":")
        if kind != "tcp" or not _is_port(port):
            raise UsageError(
                f"reading --serial {serial!r}",
                "it is not tcp: and a port",
                "--serial tcp:4555",
            )
        return f"com:listen={port}", f"kdleak hunt -k com:ipport={port},port=127.0.0.1"
    host, _, port = (kdnet or "").rpartition(":")
    if not host or not _is_port(port):
        raise UsageError(
            f"reading --kdnet {kdnet!r}", "it is not HOST:PORT", "--kdnet 127.0.0.1:50000"
        )
    key = key or os.environ.get(KEY_VARIABLE)
    if not key:
        raise UsageError(
            "starting on KDNET",
            f"no key: neither --key nor ${KEY_VARIABLE} is there",
            "choose one, four parts of letters and digits: --key 1.2.3.4",
        )
    connection = f"net:host={host},port={port},key={key}"
    parse_connection(connection)  # a bad key must not wait for the kernel to boot
    return connection, f"kdleak hunt -k net:port={port},key=..."


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _stop_at_eof(target: PracticeTarget) -> None:
    with suppress(OSError, ValueError):
        while sys.stdin.buffer.read(4096):
            pass
    target.stop()
