"""The procedure where there is no command line: ``!py -m kdleak.hunt`` inside WinDbg.

Standard library only, on CPython 3.9, with argparse and stdio objects that can do next to
nothing. The same doors serve a plain Python: ``python -m kdleak.hunt -k net:... --tag Leak``.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Callable, Sequence


def main(arguments: Sequence[str], command: str = "hunt") -> int:
    """What the ``__main__`` blocks of ``kdleak.hunt``, ``kdleak.rank`` and ``kdleak.restore`` run.

    Args:
        arguments: without the program's name.
        command: "hunt", "rank" or "restore".

    Returns:
        The exit code; WinDbg swallows it.
    """
    # In an interpreter that lives on (`!py -g`), runpy finds the module imported already and
    # says so; it is run anew all the same.
    warnings.filterwarnings("ignore", r"'kdleak\.", RuntimeWarning, "runpy")
    entry = importlib.import_module(f"kdleak.windbg.{command}_entry")
    run: Callable[[Sequence[str]], int] = entry.main
    return run(arguments)
