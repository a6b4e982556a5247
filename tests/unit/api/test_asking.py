"""What a POST of a score is answered, as a table: what the session has, times force, times criteria."""

import uuid
from typing import Any

import pytest

from builders import DEFAULT_CRITERIA, HASHES, OTHER_CRITERIA, policy
from tarsy_scoring.queue.admission import OpenScore, Priority, Request, SessionState
from tarsy_scoring.queue.on_demand import Outcome, decide

RUNNING, SCORED, SCORED_OTHERWISE = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
UNKNOWN = "criteria-nobody-has"


def asked(criteria: str | None = None, *, force: bool = False) -> Request:
    said: dict[str, Any] = {"requested_by": "alice", "priority": Priority.PEOPLE}
    return Request(uuid.uuid4(), "session-1", "api", force=force, criteria=criteria, **said)


def session(
    runs: str | None = None, *, is_bound: bool = True, hash_: str | None = None, scored: tuple[str, ...] = ()
) -> SessionState:
    """
    A session with an open score under these criteria and completed ones under those, the last the latest.

    One that has neither has none, or only failed, timed-out and cancelled ones, which decide nothing.
    """
    state = SessionState(chain_id="kubernetes" if is_bound else None)
    if runs is not None or not is_bound:
        state.open = OpenScore(RUNNING, runs, (hash_ or HASHES[runs]) if runs else None)
    for name in scored:
        found = SCORED if name == DEFAULT_CRITERIA else SCORED_OTHERWISE
        state.completed[HASHES[name]] = state.latest_completed = found
    return state


NOTHING = session()
RUNS, RUNS_OTHERWISE = session(DEFAULT_CRITERIA), session(OTHER_CRITERIA)
RUNS_AND_SCORED = session(DEFAULT_CRITERIA, scored=(DEFAULT_CRITERIA,))
HAS_SCORE, HAS_SCORE_OTHERWISE = session(scored=(DEFAULT_CRITERIA,)), session(scored=(OTHER_CRITERIA,))
HAS_BOTH = session(scored=(DEFAULT_CRITERIA, OTHER_CRITERIA))


@pytest.mark.parametrize(
    ("state", "criteria", "unforced", "forced"),
    [
        pytest.param(NOTHING, None, "new", "new", id="no score or only failed ones"),
        pytest.param(RUNS, None, RUNNING, "busy", id="one runs"),
        pytest.param(RUNS_OTHERWISE, None, RUNNING, "busy", id="one runs under other criteria than the chain's"),
        pytest.param(RUNS_AND_SCORED, None, RUNNING, "busy", id="one runs beside a completed one"),
        pytest.param(session(is_bound=False), None, RUNNING, "busy", id="one runs whose criteria nobody knows yet"),
        pytest.param(HAS_SCORE, None, SCORED, "new", id="a completed one"),
        pytest.param(HAS_SCORE_OTHERWISE, None, SCORED_OTHERWISE, "new", id="a completed one under other criteria"),
        pytest.param(HAS_BOTH, None, SCORED_OTHERWISE, "new", id="two completed ones"),
        pytest.param(NOTHING, DEFAULT_CRITERIA, "new", "new", id="criteria and no score"),
        pytest.param(RUNS, DEFAULT_CRITERIA, RUNNING, "busy", id="one runs under these criteria"),
        pytest.param(RUNS, OTHER_CRITERIA, "busy_otherwise", "busy_otherwise", id="one runs under others"),
        pytest.param(
            session(DEFAULT_CRITERIA, hash_="older"),
            DEFAULT_CRITERIA,
            "busy_otherwise",
            "busy_otherwise",
            id="one runs under these criteria as they were",
        ),
        pytest.param(
            session(OTHER_CRITERIA, scored=(DEFAULT_CRITERIA,)),
            DEFAULT_CRITERIA,
            "busy_otherwise",
            "busy_otherwise",
            id="one runs under others beside a completed one under these",
        ),
        pytest.param(
            session(is_bound=False),
            DEFAULT_CRITERIA,
            "busy_otherwise",
            "busy_otherwise",
            id="criteria and one runs whose criteria nobody knows yet",
        ),
        pytest.param(HAS_SCORE, DEFAULT_CRITERIA, SCORED, "new", id="a completed one under these criteria"),
        pytest.param(HAS_BOTH, DEFAULT_CRITERIA, SCORED, "new", id="a completed one under these and a later one"),
        pytest.param(HAS_SCORE_OTHERWISE, DEFAULT_CRITERIA, "new", "new", id="a completed one under others only"),
        pytest.param(HAS_SCORE, UNKNOWN, "new", "new", id="criteria that nobody has"),
    ],
)
@pytest.mark.parametrize("force", [False, True], ids=["as it is", "forced"])
def test_answer(
    state: SessionState, criteria: str | None, unforced: Outcome | uuid.UUID, forced: Outcome, force: bool
) -> None:
    """The table of the specification: a new score, the running one, the completed one, or a refusal."""
    answer = decide(asked(criteria, force=force), state, policy())

    expected = forced if force else unforced
    if isinstance(expected, uuid.UUID):
        assert answer.score_id == expected
        assert answer.outcome == ("running" if expected == RUNNING else "completed")
    else:
        assert answer.outcome == expected


@pytest.mark.parametrize(
    ("state", "criteria", "disposition"),
    [
        pytest.param(NOTHING, None, "accepted", id="new"),
        pytest.param(RUNS, None, "in_progress", id="running"),
        pytest.param(HAS_SCORE, None, "already_scored", id="completed"),
    ],
)
def test_what_becomes_of_the_request(state: SessionState, criteria: str | None, disposition: str) -> None:
    """A request that is answered is kept with its disposition, and with the score that the caller hears of."""
    answer = decide(asked(criteria), state, policy())

    assert answer.decision is not None
    assert (answer.decision.disposition, answer.decision.score_id) == (disposition, answer.score_id)
    assert (answer.decision.new_score is not None) == (disposition == "accepted")


@pytest.mark.parametrize(
    "request_",
    [asked(force=True), asked(OTHER_CRITERIA), asked(OTHER_CRITERIA, force=True)],
    ids=["forced", "under others", "forced under others"],
)
def test_a_refusal_changes_nothing(request_: Request) -> None:
    """There is nothing to write, nothing is deferred, and the caller hears which score is in the way."""
    state = session(DEFAULT_CRITERIA)

    answer = decide(request_, state, policy())

    assert answer.decision is None
    assert answer.score_id == RUNNING
    assert state.deferred is None


def test_a_new_score_is_bound_as_far_as_its_chain_is_known() -> None:
    """To the named criteria, else the chain's; where no chain is known yet the first claim will say."""
    of = policy(kubernetes={"criteria": OTHER_CRITERIA})

    def bound(state: SessionState, criteria: str | None = None) -> tuple[str | None, str | None, str | None]:
        decision = decide(asked(criteria), state, of).decision
        assert decision is not None
        assert decision.new_score is not None
        new = decision.new_score
        return new.chain_id, new.criteria, new.criteria_hash

    assert bound(SessionState(chain_id="kubernetes")) == ("kubernetes", OTHER_CRITERIA, HASHES[OTHER_CRITERIA])
    assert bound(SessionState()) == (None, None, None)
    assert bound(SessionState(), DEFAULT_CRITERIA) == (None, DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])
