"""The tour that the demo prints: six addresses, and what to look at on each."""

from dataclasses import dataclass

from tarsy_scoring_lab.history import (
    BUILT_TOOL,
    DATABASES,
    JUDGE_DAY,
    LOST_DAY,
    LOST_TOOL,
    PAYMENTS,
    PROMPT_DAY,
    TOOL_DAY,
    WANTED_TOOL,
    Filled,
)


@dataclass(frozen=True, slots=True)
class Stop:
    """An address of the tour, without the host, and what the page shows."""

    path: str
    look_at: str


def tour(filled: Filled) -> list[Stop]:
    """The six stops over the example sessions and the history."""
    judge, prompt, tool, lost = (filled.day(day) for day in (JUDGE_DAY, PROMPT_DAY, TOOL_DAY, LOST_DAY))
    return [
        Stop(
            "/?q=demo-",
            "the ten sessions judged just now; open one: every reason cites an entry of its timeline",
        ),
        Stop(
            "/week",
            f"{DATABASES} got worse: its agents have had no {LOST_TOOL} since {lost}, and judges miss it",
        ),
        Stop(
            f"/trends?chain={PAYMENTS}",
            f"totals rose twice: a milder judge took over on {judge} (dashed line), agents got prompt v2 on {prompt}",
        ),
        Stop(
            f"/drift?chain={PAYMENTS}",
            "both causes, separated by 40 anchors: the judge changed, and the agents changed about when v2 came",
        ),
        Stop(
            "/missing-tools",
            f"{BUILT_TOOL} was built on {tool} and is no longer asked for; {WANTED_TOOL} is what to build next",
        ),
        Stop(
            "/review",
            "scores of the last week that wait for a person, and how far people agreed with each judge",
        ),
    ]
