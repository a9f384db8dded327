"""The log walker finds in every sample the thing that the sample is about, as its reader does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_sample import CORPUS, load

from kdleak.dialect.breaks import Break, parse_breaks
from kdleak.dialect.log import parse_log
from kdleak.dialect.modules import ModuleList, parse_modules
from kdleak.dialect.pointer_listing import PointerListing
from kdleak.dialect.pool import Pool, parse_pool
from kdleak.dialect.poolfind import PoolFind, parse_poolfind
from kdleak.dialect.poolmon import PoolMonScreen, parse_poolmon
from kdleak.dialect.pooltag import PoolTagList, parse_pooltag
from kdleak.dialect.poolused import parse_poolused
from kdleak.dialect.poolused_table import PoolUsedTable
from kdleak.dialect.prompt import Prompt
from kdleak.dialect.registers import RegisterBlock, parse_registers
from kdleak.dialect.stack import StackText, parse_stacks
from kdleak.dialect.verifier import Verifier, parse_verifier
from kdleak.dialect.verifier_log import VerifierLog, parse_verifier_log
from kdleak.dialect.vm import VmUsage, parse_vm

SAMPLES = sorted(CORPUS.glob("[0-9][0-9]-*.txt"))


def _pages(values):
    return [page for value in values for page in value.pages]


def _reports(values):
    return [report for value in values for report in value.reports]


FOUND = {
    "poolused": lambda log, lines: (log.of(PoolUsedTable), parse_poolused(lines).tables),
    "stack": lambda log, lines: (
        log.of(StackText) + log.of(PointerListing),
        parse_stacks(lines).stacks + parse_stacks(lines).listings,
    ),
    "session": lambda log, lines: (log.of(Break), parse_breaks(lines).breaks),
    "break": lambda log, lines: (log.of(Break), parse_breaks(lines).breaks),
    "poolfind": lambda log, lines: (
        [search for found in log.of(PoolFind) for search in found.searches],
        list(parse_poolfind(lines).searches),
    ),
    "pool": lambda log, lines: (_pages(log.of(Pool)), list(parse_pool(lines).pages)),
    "vm": lambda log, lines: (log.of(VmUsage), parse_vm(lines).usages),
    "lm": lambda log, lines: (log.of(ModuleList), (parse_modules(lines),)),
    "registers": lambda log, lines: (log.of(RegisterBlock), parse_registers(lines).blocks),
    "poolmon": lambda log, lines: (log.of(PoolMonScreen), parse_poolmon(lines).screens),
    "pooltag": lambda log, lines: (
        [entry for found in log.of(PoolTagList) for entry in found.entries],
        list(parse_pooltag(lines).entries),
    ),
}


def _verifier(log, lines):
    if log.of(VerifierLog):
        return (
            [search for found in log.of(VerifierLog) for search in found.searches],
            list(parse_verifier_log(lines).searches),
        )
    return _reports(log.of(Verifier)), list(parse_verifier(lines).reports)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_found(path: Path):
    number = int(path.name[:2])
    lines, expected = load(number)
    kind = json.loads(path.with_suffix(".json").read_text("utf-8"))["kind"]
    log = parse_log(lines)
    found, wanted = (_verifier if kind == "verifier" else FOUND[kind])(log, lines)
    assert found == wanted
    if kind != "session" or expected["hits"]:
        assert len(found) > 0


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_line_is_accounted_for_once(path: Path):
    lines, _ = load(int(path.name[:2]))
    log = parse_log(lines)
    starts = [event.line for event in log.events]
    assert starts == sorted(starts)
    numbers = {line.number for line in lines}
    assert {entry.line for entry in log.unparsed} <= numbers
    prompts = [prompt.line for prompt in log.of(Prompt)]
    assert len(set(prompts)) == len(prompts)


def test_all_samples_are_here():
    assert len(SAMPLES) == 89


def test_all_samples_in_one_text_are_found_again():
    """Outputs of one kind glued together: nothing of a neighbour gets lost."""
    for kind in ("stack", "pool", "poolused"):
        paths = [path for path in SAMPLES if f"-{kind}-" in path.name]
        texts = ["\n".join(line.text for line in load(int(path.name[:2]))[0]) for path in paths]
        apart = [parse_log(text) for text in texts]
        for sep in ("\n", "\nkd> g\n"):
            log = parse_log(sep.join(texts))
            for type_ in (StackText, Pool, PoolUsedTable):
                alone = sum(len(one.of(type_)) for one in apart)
                assert len(log.of(type_)) >= alone * 0.8, (kind, type_, alone)
                if sep != "\n":
                    assert len(log.of(type_)) == alone, (kind, type_)
