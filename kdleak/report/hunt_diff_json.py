"""Two hunts compared, as JSON; see ``schema/huntdiff.schema.json``."""

from __future__ import annotations

from typing import Optional

from kdleak.report.hunt_diff import HuntComparison, HuntFigures, SiteChange
from kdleak.report.hunt_diff_sites import SiteFigures
from kdleak.report.json_values import Absent, Document, dump, head, name_of, with_absent


def hunt_diff_json(comparison: HuntComparison) -> str:
    """A comparison as a "kdleak.huntdiff" document: ASCII, ends with a newline."""
    return dump(
        {
            **head("kdleak.huntdiff"),
            "before": _hunt(comparison.before),
            "after": _hunt(comparison.after),
            "outcome": name_of(comparison.outcome),
            "sentence": comparison.sentence,
            "call_sites": [_change(change) for change in comparison.sites],
            "remarks": list(comparison.remarks),
        }
    )


def _hunt(hunt: HuntFigures) -> Document:
    return with_absent(
        name=hunt.name,
        tag=hunt.tag or Absent("no tag was hunted"),
        target=hunt.target,
        engine=hunt.engine,
        started_at=hunt.started_at or Absent("the result does not tell"),
        hits=hunt.hits,
        seconds=round(hunt.seconds, 6),
        seconds_watched=round(hunt.seconds_watched, 6),
        bursts=hunt.bursts,
    )


def _change(change: SiteChange) -> Document:
    return with_absent(
        name=change.pair.name,
        outcome=name_of(change.outcome),
        sentence=change.sentence,
        matched_by=change.pair.matched_by or Absent("it is in one of the hunts only"),
        before=_site(change.pair.before) or Absent("it was not seen to allocate"),
        after=_site(change.pair.after) or Absent("it was not seen to allocate"),
    )


def _site(site: Optional[SiteFigures]) -> Optional[Document]:
    if site is None:
        return None
    share = site.share_within
    return with_absent(
        name=site.name,
        judgement=site.judgement,
        allocs=site.allocs,
        followed=site.followed,
        stayed=site.stayed,
        share_staying={"low": round(share.low, 6), "high": round(share.high, 6)}
        if share is not None
        else Absent("no block allocated here was followed"),
        outstanding_bytes=site.outstanding_bytes,
        bytes_per_hour=round(site.bytes_per_hour, 3),
        bytes_per_hour_within={
            "low": round(site.within.low, 3),
            "high": round(site.within.high, 3),
        },
    )
