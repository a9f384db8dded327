"""The command group. Commands are imported when they are used, so ``--help`` answers at once."""

from __future__ import annotations

import importlib
from typing import Dict, List, Optional, Tuple

import click

from kdleak import __version__

_COMMANDS: Dict[str, Tuple[str, str]] = {
    "rank": ("kdleak.cli.rank", "Which pool tags hold or gain memory."),
    "hunt": ("kdleak.cli.hunt", "Find the code that leaks: rank, arm, collect stacks, disarm."),
    "dump": ("kdleak.cli.dump", "What a crash dump says: tags, their blocks, who asks for them."),
    "find": ("kdleak.cli.find", "The blocks of a pool tag in a crash dump."),
    "sites": ("kdleak.cli.sites", "The code that asks for a pool tag, by its instructions."),
    "diff": ("kdleak.cli.diff", "What changed between two crash dumps, or two hunts."),
    "parse": (
        "kdleak.cli.parse",
        "What is in a log: tags, hits, stacks, and the rest.",
    ),
    "report": ("kdleak.cli.report", "A result as HTML, text, folded stacks or speedscope."),
    "restore": ("kdleak.cli.restore", "Put back nt!PoolHitTag after a hunt that was killed."),
    "practice": ("kdleak.cli.practice", "Run the bundled practice kernel as a debug target."),
    "demo": ("kdleak.cli.demo", "Hunt the leak of the practice kernel, start to end."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> List[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 gate exceeded, 2 usage, 3 target or symbols, 4 incomplete "
    "result, 5 disarm not confirmed, 70 internal error, 130 interrupted.",
)
@click.version_option(__version__, prog_name="kdleak")
def cli() -> None:
    """Find the code that leaks Windows kernel pool, over a plain kernel debugger link.

    \b
    Examples:
      kdleak demo
      kdleak rank -k net:port=50000,key=1.2.3.4 --interval 30
      kdleak hunt -k net:port=50000,key=1.2.3.4
      kdleak hunt -k com:ipport=4555,port=127.0.0.1 --tag Leak --hits 200
      kdleak dump MEMORY.DMP
    """
