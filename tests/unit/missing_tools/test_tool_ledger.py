"""Which sessions count for the demand for a tool, and the state of a tool in the ledger."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from tables import table
from tarsy_scoring.missing_tools.decisions import SaidState, Saying, since_when
from tarsy_scoring.missing_tools.ledger import state_of
from tarsy_scoring.missing_tools.tool_effect import ChainDemand, Demand, measure_demand
from tarsy_scoring.missing_tools.tool_year import Asked, Group, Year

FIRST = date(2026, 3, 1)
WITH_IT, WITHOUT = "tools-with-it", "tools-without"
CONFIRMED = measure_demand([ChainDemand(100, 30, 100, 0)])
STILL_MISSED = measure_demand([ChainDemand(100, 30, 100, 30)])
UNDECIDED = measure_demand([ChainDemand(100, 30, 1, 0)])


@dataclass(frozen=True)
class Day:
    """Sessions of a day, counted from the first."""

    day: int
    group: Group


def on(day: int, *, has: bool = False, chain: str = "k", judge: str | None = "judge-1", is_known: bool = True) -> Day:
    """Sessions of a day whose agents had the tool, lacked it, or have unknown tools."""
    return Day(day, Group(chain, judge, (WITH_IT if has else WITHOUT) if is_known else None))


def measured(
    sessions: Mapping[Day, int], asked: Mapping[Day, int], *, built: int | None = None
) -> tuple[Demand | None, bool]:
    """The demand in these sessions, of which some asked; `built` is a day, counted from the first."""

    counts: dict[Group, list[tuple[int, int]]] = {}
    for one, number in sessions.items():
        counts.setdefault(one.group, []).append((FIRST.toordinal() + one.day, number))
    day = None if built is None else FIRST + timedelta(days=built)
    split = Year(counts.items()).sides({WITH_IT}, built=day)

    def requests() -> Iterator[Asked]:
        for one, number in asked.items():
            chain, _, tools = one.group
            if chain in split.starts:
                is_before = FIRST + timedelta(days=one.day) < split.starts[chain]
                yield Asked(chain, tools, number, 0) if is_before else Asked(chain, tools, 0, number)

    return split.demand(requests())


def sides(*what: Mapping[Day, int], **said: int | None) -> tuple[int, ...] | None:
    """Sessions without the tool and those of them that asked; then the same with the tool."""
    demand, _ = measured(*what, **said)
    if demand is None:
        return None
    return demand.sessions_without, demand.asked_without, demand.sessions_with, demand.asked_with


def said(state: SaidState, day: int) -> Saying:
    at = datetime(2026, 3, 1, 15, tzinfo=UTC) + timedelta(days=day)
    return Saying("node_pressure", state, at, "ada", at, None)


def test_without_sessions_on_both_sides_there_is_no_demand() -> None:
    cases: list[tuple[dict[Day, int], int | None]] = [
        ({on(0): 40, on(5): 30}, None),
        ({on(0, has=True): 40, on(5, has=True): 30}, None),
        ({on(0, is_known=False): 40, on(5, has=True): 30}, None),
        ({on(0): 40, on(5, has=True, chain="other"): 30}, None),
        ({on(0): 40, on(5): 30}, 3),
        ({on(0): 40, on(2, has=True): 30}, 3),
    ]

    for sessions, built in cases:
        assert measured(sessions, sessions, built=built) == (None, False)


def test_sessions_that_lack_the_tool_after_its_arrival_do_not_count() -> None:
    before, mixed, after = on(0), on(7), on(5, has=True)

    assert sides({before: 40, mixed: 20, after: 30}, {before: 10, mixed: 9}) == (40, 10, 30, 0)


def test_a_tool_said_to_be_built_counts_from_that_day() -> None:
    older, before, after, late = on(0, is_known=False), on(2, has=True), on(3, has=True), on(4)
    sessions = {older: 40, before: 20, after: 30, late: 50}

    assert sides(sessions, {older: 10, before: 5, late: 9}, built=3) == (60, 15, 30, 0)


def test_sessions_that_do_not_count_add_no_demand() -> None:
    unknown, before, after = on(0, is_known=False), on(0), on(5, has=True)
    sessions = {unknown: 20, before: 40, after: 30}

    assert sides(sessions, {unknown: 20, before: 5}) == (40, 5, 30, 0)


def test_sessions_without_a_judge_do_not_count() -> None:
    before, after = on(0), on(5, has=True)
    unjudged = {on(0, judge=None): 7, on(5, has=True, judge=None): 200}

    assert sides({before: 40, after: 30} | unjudged, {before: 10, after: 1}) == (40, 10, 30, 1)
    assert measured({before: 40} | unjudged, {before: 10}) == (None, False)


def test_each_chain_is_split_at_its_own_day() -> None:
    early, late, always = (on(5, has=True, chain=c) for c in ("early", "late", "always"))
    sessions = {on(0, chain="early"): 10, early: 20, on(4, chain="late"): 30, late: 40, always: 50}

    assert sides(sessions, {early: 1, late: 2, always: 3}) == (40, 0, 60, 3)


def test_demand_measured_under_another_judge_is_marked() -> None:
    before, after, other = on(0), on(5, has=True), on(6, has=True, judge="judge-2")
    elsewhere = on(6, has=True, chain="elsewhere")

    assert measured({before: 40, other: 30, elsewhere: 5}, {before: 10})[1]
    assert not measured({before: 40, after: 1, other: 30}, {before: 10})[1]


def test_judges_that_swapped_chains_share_none() -> None:
    sessions = {
        on(0): 40,
        on(5, has=True, judge="judge-2"): 30,
        on(0, chain="other", judge="judge-2"): 40,
        on(5, has=True, chain="other"): 30,
    }

    assert measured(sessions, {})[1]
    one_chain_is_enough = {on(0, chain="first"): 40, on(5, has=True, chain="first"): 30} | sessions
    assert not measured(one_chain_is_enough, {})[1]


def test_sessions_of_another_judge_decide_nothing() -> None:
    before, other, same = on(0), on(5, has=True, judge="judge-2"), on(5, has=True)
    for asked in (0, 80):
        demand, has_other_judge = measured({before: 100, other: 80}, {before: 30, other: asked})
        decided, _ = measured({before: 100, other: 80, same: 80}, {before: 30, other: asked})

        assert demand is not None
        assert (demand.asked_without, demand.asked_with, demand.sessions_needed) == (30, asked, None)
        assert (state_of(None, demand), has_other_judge) == ("built", True)
        assert decided is not None
        assert decided.verdict != "undecided"


def test_state_follows_from_decision_and_demand() -> None:
    cases: list[tuple[Saying | None, Demand | None, str]] = [
        (None, None, "open"),
        (said("planned", 0), None, "planned"),
        (said("built", 0), None, "built"),
        (None, UNDECIDED, "built"),
        (said("planned", 0), UNDECIDED, "built"),
        (said("built", 0), CONFIRMED, "confirmed"),
        (None, CONFIRMED, "confirmed"),
        (said("built", 0), STILL_MISSED, "still_missed"),
    ]

    for saying, demand, state in cases:
        assert state_of(saying, demand) == state


def before(*said: tuple[SaidState, int, int]) -> list[tuple[SaidState, datetime, datetime]]:
    """What was said: state, since which day, and on which day; the newest first."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    return [(state, noon + timedelta(days=since), noon + timedelta(days=at)) for state, since, at in said]


@table
def test_state_is_dated_by_its_history(
    state: SaidState, history: list[tuple[SaidState, int, int]], since: int | None
) -> None:
    expected = None if since is None else before(("open", since, since))[0][1]
    assert since_when(state, before(*history)) == expected
