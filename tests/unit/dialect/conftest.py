"""Long texts as parameters get short names: Windows allows no test name of 100,000 letters."""

from __future__ import annotations

from typing import Optional

import pytest

LONGEST = 100


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> Optional[str]:
    if isinstance(val, (str, bytes)) and len(val) > LONGEST:
        return f"{argname}_of_{len(val)}"
    return None
