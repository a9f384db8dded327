"""Attack whole commands on crash dumps: ``python -m tests.fuzz.fuzz_dump_commands [--count N]``.

Takes the sample dumps, and dumps of other machines, damages what readers trust (``dump_wounds``)
and does what ``kdleak dump``, ``rank -z``, ``find``, ``sites`` and ``diff`` do, with every report.
Fails, with the number that makes the same dump again, on any exception other than ``KdleakError``,
on a case that takes too long or too much memory, on a control character in a report, on JSON that
its schema does not allow, and on figures that are wrong without a word about it, where that can be
known.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from kdleak.cli.entry import run as run_command
from kdleak.dumped import DumpMoment, compare_dumps, moment_of
from kdleak.dumped.overview import overview
from kdleak.engine.dump import DumpEngine, open_dump_engine
from kdleak.errors import KdleakError
from kdleak.found import BlockSearch
from kdleak.hunt_options import RankOptions
from kdleak.model import PoolSnapshot, TagUsage
from kdleak.nt.blocks.search import search_blocks
from kdleak.nt.sites.search import search_sites
from kdleak.rank import rank
from kdleak.report.diff_json import diff_json
from kdleak.report.diff_text import render_diff
from kdleak.report.dump_json import dump_json
from kdleak.report.dump_text import render_dump
from kdleak.report.find_json import find_json
from kdleak.report.find_text import render_find
from kdleak.report.json_report import rank_json
from kdleak.report.sites_json import sites_json
from kdleak.report.sites_subject import SitesSubject
from kdleak.report.sites_text import render_sites
from kdleak.report.text import render_rank
from kdleak.result import RankBy
from tests.fuzz.dump_anatomy import LEAK, PRACTICE_SYMBOLS, Anatomy, take_apart
from tests.fuzz.dump_built import MACHINES, built_dump
from tests.fuzz.dump_wounds import Wounded, wound

SAMPLES = Path(__file__).parents[2] / "samples" / "dumps"
SECONDS_PER_CASE = 2.0
"""Of processor time: other programs may be in the way."""
MEGABYTES_PER_CASE = 400
"""More than the process held before the case, the mapped file included."""

_HARMLESS = frozenset(
    {
        *("module name", "exports", "imports", "IAT", "unwind", "unwind codes", "debug", "RSDS"),
        *("code", "pool header", "pool block", "comment", "big pages", "module entry"),
        *("header", "data", "PE header", "KDBG", "KDBG field", "module list head", "variable"),
    }
)
"""Kinds of structures that are no figures of tags: damaged, they must not change one silently."""

_COMMANDS = (
    ("dump", "{}"),
    ("dump", "{}", "--json"),
    ("rank", "-z", "{}"),
    ("rank", "-z", "{}", "--json"),
    ("find", "Leak", "-z", "{}", "--limit", "100"),
    ("sites", "Leak", "-z", "{}"),
    ("diff", "{}", "{}"),
)
_CONTROLS = re.compile(r"[^\n -~]")
_CODES = {0, 2, 3, 4}


@dataclass
class Tally:
    """What happened to all cases together."""

    cases: int = 0
    refused: int = 0
    errors: int = 0
    slowest: float = 0.0
    slowest_case: str = ""
    most_memory: int = 0


class Checker:
    """Does everything with one damaged dump.

    Args:
        early: an undamaged dump, for comparisons.
    """

    def __init__(self, early: Path) -> None:
        self._schemas: dict[str, Any] = {}
        with open_dump_engine(early) as engine:
            self._early = _moment(engine)
        self.errors = 0

    # -- the commands

    def look(self, path: Path, wounded: Wounded, rng: random.Random) -> None:
        """Open a dump and make every report of it.

        Raises:
            KdleakError: it does not open.
            AssertionError: a promise is not kept.
        """
        symbols = rng.choice(("", "", PRACTICE_SYMBOLS))
        with open_dump_engine(path, symbols) as engine:
            parts: list[Callable[[DumpEngine, Wounded], None]] = [
                self._rank,
                self._find,
                self._sites,
                self._overview,
                self._diff,
            ]
            for part in (self._rank, *rng.sample(parts[1:], 2)):
                self._part(part, engine, wounded)
            for remark in engine.remarks:
                assert remark, "an empty remark"

    def _part(
        self,
        part: Callable[[DumpEngine, Wounded], None],
        engine: DumpEngine,
        wounded: Wounded,
    ) -> None:
        try:
            part(engine, wounded)
        except KdleakError as error:
            self.errors += 1
            check_error(error)

    def _rank(self, engine: DumpEngine, wounded: Wounded) -> None:
        options = RankOptions(by=RankBy.USED, snapshots=1)
        result = rank(engine, options)
        self._text(render_rank(result, width=100))
        self._json("rank", rank_json(result))
        self._figures(engine, engine.pool_usage(), wounded)

    def _figures(self, engine: DumpEngine, found: PoolSnapshot, wounded: Wounded) -> None:
        same = _same(found.rows, wounded.anatomy.truth)
        if wounded.kinds and not same and not found.gaps:
            if wounded.removed == wounded.kinds and "tag tables" in wounded.removed:
                raise AssertionError("a page of the tag tables is missing, and nothing says so")
            if wounded.kinds <= _HARMLESS:
                raise AssertionError(
                    f"{len(found.rows)} tags, not those of the undamaged dump, and nothing says so"
                )

    def _find(self, engine: DumpEngine, wounded: Wounded) -> None:
        usage = None
        with contextlib.suppress(KdleakError):
            usage = engine.pool_usage().find(LEAK)
        memory = engine.memory
        if memory is None:
            return
        found = search_blocks(
            LEAK,
            memory=memory,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            build=engine.target.build,
            pointer_size=engine.target.pointer_size,
            limit=200,
            counters=usage,
        )
        text = render_find(found, where=engine.where, target=engine.target)
        self._text(text)
        self._json(
            "find", find_json(found, where=engine.where, target=engine.target, engine=engine.name)
        )
        _check_search(found, usage, wounded)

    def _sites(self, engine: DumpEngine, wounded: Wounded) -> None:
        del wounded
        (found,) = search_sites(
            (LEAK,),
            memory=engine.memory or engine,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            pointer_size=engine.target.pointer_size,
            architecture=engine.target.architecture,
        )
        subject = SitesSubject(engine.where, engine.target, engine.name)
        self._text(render_sites(found, subject))
        self._json("sites", sites_json(found, subject))

    def _overview(self, engine: DumpEngine, wounded: Wounded) -> None:
        del wounded
        found = overview(engine)
        for width in (100, 40):
            self._text(render_dump(found, width=width))
        self._json("dump", dump_json(found))

    def _diff(self, engine: DumpEngine, wounded: Wounded) -> None:
        del wounded
        found = compare_dumps([self._early, _moment(engine)])
        self._text(render_diff(found))
        self._json("diff", diff_json(found))

    # -- the promises

    def _text(self, text: str) -> None:
        bad = [char for char in set(text) - {"\n"} if not char.isprintable()]
        assert not bad, f"characters {bad!r} in a report"
        assert text.endswith("\n")

    def _json(self, name: str, text: str) -> None:
        found = _CONTROLS.search(text)
        assert not found, f"character {found.group()!r} in JSON" if found else ""
        validator = self._schemas.get(name)
        if validator is None:
            place = resources.files("kdleak.report") / "schema" / f"{name}.schema.json"
            schema = json.loads(place.read_text("utf-8"))
            validator = self._schemas[name] = jsonschema.Draft202012Validator(schema)
        problem = next(iter(validator.iter_errors(json.loads(text))), None)
        assert problem is None, f"{name}: {problem.json_path}: {problem.message}"[:300]


def _moment(engine: DumpEngine) -> DumpMoment:
    return DumpMoment(
        name=engine.where,
        target=engine.target,
        snapshot=engine.pool_usage(),
        moment=moment_of(engine.target, engine.dump.header),
        remarks=tuple(engine.remarks),
    )


def _same(rows: Iterable[TagUsage], truth: Iterable[TagUsage]) -> bool:
    return sorted(map(repr, rows)) == sorted(map(repr, truth))


def _check_search(found: BlockSearch, usage: TagUsage | None, wounded: Wounded) -> None:
    if found.complete:
        assert usage is not None, "complete, with nothing to compare with"
        counted = usage.outstanding, usage.bytes
        assert found.allocated == counted, f"complete: {found.allocated}, counted {counted}"
    else:
        assert found.gaps, "not complete, and nothing says why"
    if wounded.removed and {"pool block", "pool header"} & wounded.removed:
        whole = next(row for row in wounded.anatomy.truth if row.tag == LEAK)
        assert not (found.complete and usage == whole), "complete, with a page of it missing"


def check_error(error: KdleakError) -> None:
    """An error has to say what was tried, what came back, and what to do next.

    Raises:
        AssertionError: it does not.
    """
    assert error.tried, f"no 'tried': {error}"
    assert error.came_back, f"no 'came back': {error}"
    assert error.next_step, f"no 'next': {error}"
    assert len(str(error)) < 2000, f"an error of {len(str(error))} characters"


def run_as_command(path: Path, rng: random.Random) -> None:
    """One whole command line, as ``kdleak`` runs it.

    Raises:
        AssertionError: a traceback, a wrong exit code, or a line that harms a terminal.
    """
    words = [word.format(path) for word in rng.choice(_COMMANDS)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command([*words, "-vv"] if words[0] not in ("dump", "diff") else words)
    said = err.getvalue()
    assert code in _CODES, f"{words[0]}: exit code {code}: {said[-1500:]}"
    for text in (out.getvalue(), said):
        bad = [char for char in set(text) - {"\n"} if not char.isprintable()]
        assert not bad, f"{words[0]}: characters {bad!r} on the terminal"
    if code == 3:
        errors = [line for line in said.splitlines() if line.startswith("kdleak: ")]
        assert len(errors) == 1, f"{len(errors)} error lines: {said[-1500:]}"
        assert "Next: " in errors[0], f"an error without advice: {errors[0]}"


def _peak() -> int:
    """Most memory held since ``_forget_peak``, bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def one_case(seed: int, number: int, samples: list[Anatomy]) -> tuple[Wounded, random.Random]:
    """The damaged dump of one case; the same for the same seed and number."""
    rng = random.Random(f"{seed}/{number}")
    return wound(samples[number % len(samples)], rng), rng


def fuzz(seed: int, numbers: Iterable[int], folder: Path, tally: Tally, seconds: float) -> str:
    """Attack; "" when all was well, else what was not. The last dump stays in the folder.

    Args:
        seed: of all cases.
        numbers: of the cases.
        folder: for the dumps.
        tally: counts.
        seconds: when to stop, 0 for never.
    """
    samples = [take_apart(path) for path in sorted(SAMPLES.glob("*.dmp"))]
    samples += [built_dump(name, folder) for name in MACHINES]
    checker = Checker(SAMPLES / "early.dmp")
    path = folder / "damaged.dmp"
    began = time.monotonic()
    for number in numbers:
        if seconds and time.monotonic() - began > seconds:
            break
        wounded, rng = one_case(seed, number, samples)
        case = f"case {number} of seed {seed} ({wounded.anatomy.name}; {'; '.join(wounded.done)})"
        path.unlink(missing_ok=True)  # a new file: the last one may still be mapped
        path.write_bytes(wounded.data)
        _forget_peak()
        held, started = _peak(), time.process_time()
        try:
            if number % 6 == 5:
                run_as_command(path, rng)
            else:
                checker.look(path, wounded, rng)
        except KdleakError as error:
            tally.refused += 1
            try:
                check_error(error)
            except AssertionError as problem:
                return f"{case}: {problem}"
        except AssertionError as problem:
            return f"{case}: {problem or traceback.format_exc(limit=-3)}"
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{case}:\n{traceback.format_exc(limit=-8)}"
        took, memory = time.process_time() - started, _peak() - held
        tally.cases += 1
        tally.errors = checker.errors
        tally.most_memory = max(tally.most_memory, memory)
        if took > tally.slowest:
            tally.slowest, tally.slowest_case = took, case
        if took > SECONDS_PER_CASE:
            return f"{case}: {took:.2f} s"
        if memory > MEGABYTES_PER_CASE << 20:
            return f"{case}: {memory >> 20} MB"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="cases")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this one case of the seed")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="folder where the failing dump stays")
    options = parser.parse_args()
    numbers = range(options.start, options.start + options.count)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    os.environ["NO_COLOR"] = "1"
    tally = Tally()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        problem = fuzz(options.seed, numbers, Path(folder), tally, options.seconds)
        if problem:
            print(f"FAILED {problem}")
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / "damaged.dmp"
                kept.write_bytes((Path(folder) / "damaged.dmp").read_bytes())
                print(f"the dump: {kept}")
            return 1
    took = time.perf_counter() - started
    print(
        f"seed {options.seed}: {tally.cases} damaged dumps in {took:.0f} s, {tally.refused} "
        f"refused, {tally.errors} reports refused; at most {tally.most_memory >> 20} MB more; "
        f"slowest {tally.slowest:.2f} s: {tally.slowest_case}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
