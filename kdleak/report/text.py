"""Reports for people: pure functions from results to text."""

from __future__ import annotations

from kdleak.report.hunt_text import render_hunt
from kdleak.report.rank_text import render_rank
from kdleak.report.restore_text import render_restore

__all__ = ["render_hunt", "render_rank", "render_restore"]
