"""Attack every parser with mutated logs: ``python -m tests.fuzz.mutate --seconds 60 [--seed N]``.

Fails, with the seed and the smallest text that still fails, on any exception other than
``KdleakError``, on a promise not kept, and on a parse that takes too long for the size of its text.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.source import Line, decode
from tests.fuzz.mutations import mutate
from tests.fuzz.parsers import Subject, cpu_seconds, find_subjects, lines_to_try

CORPORA = [Path(__file__).parents[1] / name for name in ("corpus", "corpus_tables", "corpus_own")]
FAILURES = Path(__file__).parent / "failures"

SECONDS_PER_KILOBYTE = 0.01
SECONDS_AT_LEAST = 0.2
"""Processor time a parse may take: many times what the slowest one needs."""

_REDUCE_SECONDS = 20.0


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        subject: name of the parser.
        problem: one line that says what happened.
    """

    subject: str
    problem: str


def corpus_texts() -> Tuple[str, ...]:
    """Every text of the three corpora."""
    paths = [path for folder in CORPORA for path in sorted(folder.glob("*.txt"))]
    return tuple(decode(path.read_bytes()) for path in paths)


def try_text(text: str, subjects: Sequence[Subject]) -> Optional[Failure]:
    """Run the parsers over a text as it is and without its decoration."""
    plain = lines_to_try(text)
    for subject in subjects:
        failure = _try_subject(subject, plain, len(text))
        if failure:
            return failure
    bare = undecorate(text)
    if bare == plain:
        return None
    for subject in subjects:
        failure = _try_subject(subject, bare, len(text))
        if failure:
            return failure
    return None


def _try_subject(subject: Subject, lines: Sequence[Line], size: int) -> Optional[Failure]:
    allowed = SECONDS_AT_LEAST + size / 1024 * SECONDS_PER_KILOBYTE
    try:
        spent = cpu_seconds(subject.run, lines)
        if spent > allowed:
            # measured again: another program may have been in the way
            spent = min(spent, cpu_seconds(subject.run, lines))
    except Exception as problem:  # noqa: BLE001  whatever it is, it is a finding
        return Failure(subject.name, f"{type(problem).__name__}: {problem}"[:200])
    if spent > allowed:
        return Failure(subject.name, f"slow: more than {allowed:.1f} s for {size} characters")
    return None


def reduce_text(text: str, fails: Callable[[str], bool], seconds: float) -> str:
    """The smallest text found in the time given that still fails: fewer lines, then characters."""
    end = time.monotonic() + seconds
    for split, join in ((lambda t: t.split("\n"), "\n".join), (list, "".join)):
        parts: List[str] = split(text)
        step = max(len(parts) // 2, 1)
        while step and time.monotonic() < end:
            at = 0
            shorter = False
            while at < len(parts) and time.monotonic() < end:
                fewer = parts[:at] + parts[at + step :]
                if fewer and fails(join(fewer)):
                    parts = fewer
                    shorter = True
                else:
                    at += step
            step = step if shorter and step == 1 else step // 2
        text = join(parts)
    return text


def one_case(seed: int, number: int, texts: Sequence[str]) -> str:
    """The text of one case: the same for the same seed, number and corpus."""
    return decode(mutate(random.Random(f"{seed}:{number}"), texts))


def run(seconds: float, seed: int, subjects: Sequence[Subject]) -> Tuple[int, Optional[Failure]]:
    """Attack for some seconds.

    Returns:
        The number of the case that failed, or the number of cases; and the failure.
    """
    texts = corpus_texts()
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        failure = try_text(one_case(seed, number, texts), subjects)
        if failure:
            return number, failure
        number += 1
    return number, None


def save(seed: int, number: int, failure: Failure, subjects: Sequence[Subject]) -> Path:
    """Write the smallest text that makes the same parser fail."""
    only = [subject for subject in subjects if subject.name == failure.subject]
    kind = failure.problem.partition(":")[0]

    def fails(text: str) -> bool:
        again = try_text(text, only)
        return again is not None and again.problem.partition(":")[0] == kind

    text = reduce_text(one_case(seed, number, corpus_texts()), fails, _REDUCE_SECONDS)
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{seed}-{number}-{failure.subject.replace('/', '-')}.txt"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    return path


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, help="run this one case of the seed")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    subjects = find_subjects()
    if options.only is not None:
        number = options.only
        failure = try_text(one_case(seed, number, corpus_texts()), subjects)
    else:
        number, failure = run(options.seconds, seed, subjects)
    if failure is None:
        print(f"seed {seed}: {number} cases, {len(subjects)} parsers and readers, no failure")
        return 0
    print(f"seed {seed}, case {number}: {failure.subject}: {failure.problem}")
    print(f"smallest text: {save(seed, number, failure, subjects)}")
    print(f"again: python -m tests.fuzz.mutate --seed {seed} --only {number}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
