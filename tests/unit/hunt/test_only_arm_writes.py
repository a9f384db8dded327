"""kdleak.arm is the only module that writes target memory through an engine."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import List

import kdleak

PACKAGE = Path(kdleak.__file__).parent
ENGINE_NAMES = {"engine", "_engine"}


def engine_writes(path: Path) -> List[int]:
    """Lines with a call of ``engine.write`` or ``x.engine.write`` or ``x._engine.write``."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Attribute) and node.attr == "write"):
            continue
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if name in ENGINE_NAMES:
            lines.append(node.lineno)
    return lines


def test_only_arm_writes() -> None:
    writers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if engine_writes(path)
    }
    assert writers == {"arm.py"}


def test_arm_writes_in_one_place() -> None:
    assert len(engine_writes(PACKAGE / "arm.py")) == 1
