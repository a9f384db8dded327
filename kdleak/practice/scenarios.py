"""Scenarios: further drivers that are loaded only when one is chosen, each with its own lesson."""

from __future__ import annotations

from dataclasses import dataclass

from kdleak.errors import UsageError


@dataclass(frozen=True)
class Version:
    """What the version resource of a practice driver says.

    Attributes:
        number: four numbers.
        company: CompanyName.
        description: FileDescription.
    """

    number: tuple[int, int, int, int]
    company: str
    description: str


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: what the user types.
        words: what happens in it.
        tag: the tag to hunt.
        drivers: images in load order, by name; an image imports only from earlier ones.
        culprit: the driver that leaks; "" when nobody does.
    """

    name: str
    words: str
    tag: str
    drivers: tuple[str, ...]
    culprit: str = ""


SCENARIOS = (
    Scenario(
        "frameworks",
        "a leak behind five framework frames; another driver takes the same way and frees all",
        "Fmwk",
        ("Wdf01000", "ndis", "NETIO", "fltmgr", "hiddendrv", "honestdrv"),
        culprit="hiddendrv",
    ),
    Scenario(
        "handover",
        "blocks allocated by one driver and freed by another; nothing leaks",
        "Hand",
        ("makerdrv", "takerdrv"),
    ),
    Scenario(
        "cache",
        "a cache that fills up and then stays as it is; nothing leaks",
        "Warm",
        ("cachedrv",),
    ),
)

_LAYERS = "Practice Frameworks"
VERSIONS = {
    "Wdf01000": Version((1, 33, 0, 7), _LAYERS, "Practice driver framework"),
    "ndis": Version((6, 89, 0, 7), _LAYERS, "Practice network driver interface"),
    "NETIO": Version((6, 89, 1, 7), _LAYERS, "Practice network I/O"),
    "fltmgr": Version((10, 0, 2, 7), _LAYERS, "Practice filter manager"),
    "hiddendrv": Version((3, 1, 4, 159), "Practice Hidden Works", "Leaks behind five frames"),
    "honestdrv": Version((2, 7, 1, 828), "Practice Honest Works", "Gives back what it takes"),
    "makerdrv": Version((1, 0, 0, 1), "Practice Handover Works", "Makes messages"),
    "cachedrv": Version((4, 2, 0, 0), "Practice Cache Works", "Fills a cache"),
}
"""Version resources; takerdrv has none, as some drivers have none."""


def scenario_named(name: str) -> Scenario:
    """A scenario by name.

    Raises:
        UsageError: there is none of that name.
    """
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise UsageError(
        f"choosing the practice scenario {name!r}",
        "there is none of that name",
        "take one of " + ", ".join(scenario.name for scenario in SCENARIOS),
    )


def scenario_drivers(name: str) -> tuple[str, ...]:
    """Drivers of a scenario in load order; none for "".

    Raises:
        UsageError: there is no scenario of that name.
    """
    return scenario_named(name).drivers if name else ()
