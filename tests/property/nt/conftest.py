"""The fakes of the unit tests serve the properties too."""

from __future__ import annotations

import sys
from pathlib import Path

_FAKES = str(Path(__file__).parents[2] / "unit" / "nt")
if _FAKES not in sys.path:
    sys.path.append(_FAKES)
