"""A few seconds of the mutation run and of the texts made to be slow; the attack itself works."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
try:
    from tests.fuzz import mutate, scaling
    from tests.fuzz.mutations import MUTATIONS
    from tests.fuzz.parsers import Subject, find_subjects, walker
finally:
    sys.path.remove(str(ROOT))

SEED = 20

SUBJECTS = find_subjects()


def raising(word):
    def run(lines):
        if any(word in line.text for line in lines):
            raise IndexError(word)

    return Subject("raising", run)


def cubic(lines):
    for line in lines:
        for _one in line.text:
            for _other in line.text:
                sum(1 for _third in line.text)


def test_every_kind_of_parser_is_attacked():
    names = {subject.name for subject in SUBJECTS}
    assert {"pool.parse_pool", "stack.parse_stacks", "poolused.parse_poolused"} <= names
    assert {"starts/take_pool", "starts/take_stack", "starts/take_poolmon"} <= names


def test_mutated_logs():
    number, failure = mutate.run(3.0, SEED, SUBJECTS)
    assert failure is None, f"seed {SEED}, case {number}"
    assert number > 20


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_mutation(mutation):
    texts = mutate.corpus_texts()
    rng = random.Random(SEED)
    changed = 0
    for text in texts[::12]:
        mutated = mutation(rng, text, texts)
        changed += mutated != text
        assert mutate.try_text(mutated, SUBJECTS) is None
    assert changed


@pytest.mark.parametrize(
    "text",
    [
        "Tag Allocs     Used    Allocs     Used\nD    1      112         0        -0",
        "Tag Allocs Used Allocs Used\n> 0",
    ],
    ids=["a sign that its column parts from its digits", "a collapsed row of one number"],
)
def test_what_once_failed(text):
    assert mutate.try_text(text, SUBJECTS) is None


def test_cases_come_back_for_a_seed():
    texts = mutate.corpus_texts()
    cases = [mutate.one_case(SEED, number, texts) for number in range(20)]
    assert cases == [mutate.one_case(SEED, number, texts) for number in range(20)]
    assert len(set(cases)) > 15


def test_a_failure_is_found_and_made_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutate, "FAILURES", tmp_path / "failures")
    monkeypatch.setattr(mutate, "find_subjects", lambda: [raising("Allocated")])
    assert mutate.main(["--seconds", "60", "--seed", str(SEED)]) == 1
    printed = capsys.readouterr().out
    assert f"seed {SEED}, case " in printed
    assert "raising: IndexError: Allocated" in printed
    (saved,) = (tmp_path / "failures").iterdir()
    assert saved.read_text("utf-8") == "Allocated"


def test_a_promise_not_kept_is_found():
    stuck = walker(lambda lines, index: True, lambda lines, index: (None, index))
    failure = mutate.try_text("a\n", [Subject("stuck", stuck)])
    assert failure is not None
    assert failure.problem.startswith("Broken: take at index 0 of 1")


@pytest.mark.parametrize("subject", [*SUBJECTS, scaling.symbol_subject()], ids=lambda s: s.name)
def test_twice_the_text_takes_about_twice_the_time(subject):
    made = scaling.all_texts(corpus=False)
    assert [str(found) for found in scaling.find_offenders([subject], made, 4096)] == []


def test_a_parser_that_is_not_linear_is_an_offender():
    made = scaling.all_texts(corpus=False)
    some = {name: made[name] for name in ("a line of blanks", "lines: one-character lines")}
    found = scaling.find_offenders([Subject("cubic", cubic)], some, 160)
    assert [offender.text for offender in found] == ["a line of blanks"]
