"""The answer to an API request for a score, by state of the session, force and criteria."""

import uuid

import pytest

from builders import DEFAULT_CRITERIA, HASHES, OTHER_CRITERIA, policy
from tarsy_scoring.queue.admission import OpenScore, Priority, Request, ScoreUnderWay, SessionState, decide

RUNNING, SCORED, SCORED_OTHERWISE = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
UNKNOWN = "criteria-without-a-file"
NAMES = {RUNNING: "running", SCORED: "completed", SCORED_OTHERWISE: "completed otherwise"}


def request(criteria: str | None = None, *, force: bool = False) -> Request:
    return Request(
        *(uuid.uuid4(), "session-1", "api"),
        force=force,
        criteria=criteria,
        requested_by="alice",
        priority=Priority.PEOPLE,
    )


def session(
    runs: str | None = None, *, is_bound: bool = True, hash_: str | None = None, scored: tuple[str, ...] = ()
) -> SessionState:
    """
    A session with an open score under the criteria `runs`, and completed ones under `scored`, the last the latest.

    Failed, timed-out and cancelled scores decide nothing, so that there is no state for them.
    """
    state = SessionState(chain_id="kubernetes" if is_bound else None)
    if runs is not None or not is_bound:
        state.open = OpenScore(RUNNING, runs, (hash_ or HASHES[runs]) if runs else None)
    for name in scored:
        found = SCORED if name == DEFAULT_CRITERIA else SCORED_OTHERWISE
        state.completed[HASHES[name], None] = found
    return state


NOTHING, UNBOUND = session(), session(is_bound=False)
RUNS, RUNS_OTHERWISE = session(DEFAULT_CRITERIA), session(OTHER_CRITERIA)
HAS_SCORE, HAS_SCORE_OTHERWISE = session(scored=(DEFAULT_CRITERIA,)), session(scored=(OTHER_CRITERIA,))
HAS_BOTH = session(scored=(DEFAULT_CRITERIA, OTHER_CRITERIA))
# State, criteria of the request, outcome without and with force.
TABLE = [
    (NOTHING, None, "new", "new"),
    (RUNS, None, "running", "busy"),
    (RUNS_OTHERWISE, None, "running", "busy"),
    (session(DEFAULT_CRITERIA, scored=(DEFAULT_CRITERIA,)), None, "running", "busy"),
    (UNBOUND, None, "running", "busy"),
    (HAS_SCORE, None, "completed", "new"),
    (HAS_SCORE_OTHERWISE, None, "completed otherwise", "new"),
    (HAS_BOTH, None, "completed otherwise", "new"),
    (NOTHING, DEFAULT_CRITERIA, "new", "new"),
    (RUNS, DEFAULT_CRITERIA, "running", "busy"),
    (RUNS, OTHER_CRITERIA, "busy_otherwise", "busy_otherwise"),
    (session(DEFAULT_CRITERIA, hash_="older"), DEFAULT_CRITERIA, "busy_otherwise", "busy_otherwise"),
    (session(OTHER_CRITERIA, scored=(DEFAULT_CRITERIA,)), DEFAULT_CRITERIA, "busy_otherwise", "busy_otherwise"),
    (UNBOUND, DEFAULT_CRITERIA, "busy_otherwise", "busy_otherwise"),
    (HAS_SCORE, DEFAULT_CRITERIA, "completed", "new"),
    (HAS_BOTH, DEFAULT_CRITERIA, "completed", "new"),
    (HAS_SCORE_OTHERWISE, DEFAULT_CRITERIA, "new", "new"),
    (HAS_SCORE, UNKNOWN, "new", "new"),
]
DISPOSITIONS = {"new": "accepted", "running": "in_progress", "completed": "already_scored"}


def test_answer_follows_state_criteria_and_force() -> None:
    for row, (state, criteria, unforced, forced) in enumerate(TABLE):
        for force, expected in ((False, unforced), (True, forced)):
            case = f"row {row}, force {force}"
            if expected.startswith("busy"):
                with pytest.raises(ScoreUnderWay) as refused:
                    decide(request(criteria, force=force), state, policy())
                assert refused.value.is_otherwise == (expected == "busy_otherwise"), case
                assert (refused.value.score_id, state.deferred) == (RUNNING, None), case
                continue
            decision = decide(request(criteria, force=force), state, policy())
            assert decision.disposition == DISPOSITIONS[expected.split(" ")[0]], case
            assert NAMES.get(decision.score_id or SCORED, "new") == expected, case


def test_new_score_takes_its_criteria_from_its_request_or_known_chain() -> None:
    of = policy(kubernetes={"criteria": OTHER_CRITERIA})

    def bound(state: SessionState, criteria: str | None = None) -> tuple[str | None, str | None, str | None]:
        decision = decide(request(criteria), state, of)
        return decision.chain_id, decision.criteria, decision.criteria_hash

    assert bound(SessionState(chain_id="kubernetes")) == ("kubernetes", OTHER_CRITERIA, HASHES[OTHER_CRITERIA])
    assert bound(SessionState()) == (None, None, None)
    assert bound(SessionState(), DEFAULT_CRITERIA) == (None, DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])
