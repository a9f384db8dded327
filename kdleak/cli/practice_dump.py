"""The part of ``kdleak practice`` that writes crash dumps (``--dump FILE``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import click

from kdleak.cli.target_options import FiniteRange
from kdleak.dump.kind import DumpKind
from kdleak.errors import UsageError
from kdleak.practice.workload import Workload

if TYPE_CHECKING:
    from kdleak.practice.crash import CrashDump

_KINDS = {
    "full": DumpKind.FULL,
    "bitmap": DumpKind.BITMAP_FULL,
    "kernel": DumpKind.BITMAP_KERNEL,
}
_DEFAULT_MEMORY = 128.0
_PAGES_PER_MEGABYTE = 256
_PAGE_SIZE = 0x1000
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class DumpOptions:
    """The options that belong to ``--dump``, as the user gave them.

    Attributes:
        file: where to write; None without ``--dump``.
        kind: "full", "bitmap" or "kernel"; None for the default.
        ticks: None for the default.
        memory: MB; None for the default.
        workload: NAME=N each.
        no_kdbg: leave KdDebuggerDataBlock out.
        encoded_kdbg: encode it.
        force: replace a file.
    """

    file: Optional[Path]
    kind: Optional[str]
    ticks: Optional[int]
    memory: Optional[float]
    workload: tuple[str, ...]
    no_kdbg: bool
    encoded_kdbg: bool
    force: bool

    def refuse_without_dump(self) -> None:
        """Refuse options that mean nothing for a live target.

        Raises:
            UsageError: one was given.
        """
        given = {
            "--dump-kind": self.kind is not None,
            "--ticks": self.ticks is not None,
            "--memory": self.memory is not None,
            "--workload": bool(self.workload),
            "--no-kdbg": self.no_kdbg,
            "--encoded-kdbg": self.encoded_kdbg,
            "--force": self.force,
        }
        for name, is_given in given.items():
            if is_given:
                raise UsageError(
                    f"starting the practice kernel with {name}",
                    "that option belongs to a crash dump",
                    "add --dump FILE, or leave it out",
                )


def dump_options(command: _Command) -> _Command:
    """Decorator: add the options to a command, which gets them as ``DumpOptions``'s fields."""
    options = (
        click.option(
            "--dump",
            "dump_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Run without a debugger, crash, and write the crash dump.",
        ),
        click.option(
            "--dump-kind",
            type=click.Choice(list(_KINDS)),
            help="full: all memory; bitmap, kernel: the pages in use.  [default: bitmap]",
        ),
        click.option(
            "--ticks",
            type=click.IntRange(0, 1_000_000),
            metavar="N",
            help="How long it runs before it crashes, 100 ticks a second.  [default: 2000]",
        ),
        click.option(
            "--memory",
            type=FiniteRange(min=1, max=4096),
            metavar="MB",
            help="Memory of the machine that crashes.  [default: 128]",
        ),
        click.option(
            "--workload",
            multiple=True,
            metavar="NAME=N",
            help="What it does until then, for instance leak_requests=50; may be repeated.",
        ),
        click.option("--no-kdbg", is_flag=True, help="Leave KdDebuggerDataBlock out of the dump."),
        click.option("--encoded-kdbg", is_flag=True, help="Leave it as booted without debugging."),
        click.option("--force", is_flag=True, help="Replace a dump that is there."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def write_dump(
    options: DumpOptions, *, seed: int, build: int, processors: int, scenario: str = ""
) -> CrashDump:
    """Run a machine and write its dump.

    Raises:
        ImportError: the emulator is not installed.
        UsageError: options that make no sense, or the file is there already.
        TargetError: the file cannot be written.
    """
    from kdleak.practice import crash  # noqa: PLC0415 - needs an extra

    assert options.file is not None  # noqa: S101
    if options.no_kdbg and options.encoded_kdbg:
        raise UsageError(
            "choosing what becomes of KdDebuggerDataBlock",
            "--no-kdbg and --encoded-kdbg exclude each other",
            "give one of them",
        )
    data_block = crash.DataBlock.PLAIN
    if options.no_kdbg:
        data_block = crash.DataBlock.ABSENT
    elif options.encoded_kdbg:
        data_block = crash.DataBlock.ENCODED
    memory = _DEFAULT_MEMORY if options.memory is None else options.memory
    return crash.write_crash_dump(
        options.file,
        kind=_KINDS[options.kind or "bitmap"],
        seed=seed,
        build=build,
        processors=processors,
        memory=int(memory * _PAGES_PER_MEGABYTE) * _PAGE_SIZE,
        ticks=crash.DEFAULT_TICKS if options.ticks is None else options.ticks,
        workload=replace(_workload(options.workload, crash.DEFAULT_WORKLOAD), scenario=scenario),
        data_block=data_block,
        force=options.force,
    )


def _workload(settings: Iterable[str], start: Workload) -> Workload:
    numbers = [field.name for field in fields(Workload) if isinstance(field.default, int)]
    values: dict[str, Any] = {name: getattr(start, name) for name in numbers}
    for setting in settings:
        name, _, number = setting.partition("=")
        name = name.strip().replace("-", "_")
        if name not in values or not number.isascii() or not number.isdigit() or len(number) > 9:
            raise UsageError(
                f"reading --workload {setting!r}",
                "it is not NAME=N with one of the names " + ", ".join(values),
                "--workload leak_requests=50",
            )
        values[name] = int(number)
    return replace(start, **values)
