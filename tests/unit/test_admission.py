"""What becomes of a request, as tables: every disposition, and which one wins."""

import copy
import itertools
import uuid
from typing import Any

import pytest

from builders import DEFAULT_CRITERIA, HASHES, OTHER_CRITERIA, policy, rescore, session_completed
from tarsy_scoring.queue.admission import (
    OpenScore,
    Policy,
    Purpose,
    Request,
    SessionState,
    admit,
    is_sampled,
)

SCORED = uuid.uuid4()
RUNNING = OpenScore(uuid.uuid4(), DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])


def running(criteria: str | None = DEFAULT_CRITERIA, criteria_hash: str | None = HASHES[DEFAULT_CRITERIA]) -> Any:
    return SessionState(chain_id="kubernetes", open=OpenScore(RUNNING.score_id, criteria, criteria_hash))


def scored(criteria: str = DEFAULT_CRITERIA) -> SessionState:
    return SessionState(chain_id="kubernetes", completed={HASHES[criteria]: SCORED})


@pytest.mark.parametrize(
    ("request_", "state", "of", "disposition"),
    [
        pytest.param(session_completed(), SessionState(), policy(), "accepted", id="new-session"),
        pytest.param(rescore(), SessionState(), policy(), "accepted", id="unknown-session-rescored"),
        pytest.param(session_completed(), running(), policy(), "in_progress", id="automatic-while-running"),
        pytest.param(rescore(), running(), policy(), "in_progress", id="rescore-under-the-running-criteria"),
        pytest.param(rescore(criteria=OTHER_CRITERIA), running(), policy(), "deferred", id="rescore-under-others"),
        pytest.param(session_completed(), scored(), policy(), "already_scored", id="automatic-and-scored"),
        pytest.param(session_completed(), scored(OTHER_CRITERIA), policy(), "accepted", id="scored-under-others-only"),
        pytest.param(rescore(force=False), scored(), policy(), "already_scored", id="unforced-and-scored"),
        pytest.param(
            rescore(force=False, criteria=OTHER_CRITERIA), scored(), policy(), "accepted", id="unforced-under-others"
        ),
        pytest.param(rescore(), scored(), policy(), "accepted", id="forced-and-scored"),
        pytest.param(session_completed(), SessionState(), policy(enabled=False), "disabled", id="service-disabled"),
        pytest.param(
            session_completed(), SessionState(), policy(kubernetes={"enabled": False}), "disabled", id="chain-disabled"
        ),
        pytest.param(
            session_completed(session_status="failed"), SessionState(), policy(), "status_not_scored", id="failed"
        ),
        pytest.param(
            session_completed(session_status="exploded"), SessionState(), policy(), "status_not_scored", id="no-status"
        ),
        pytest.param(
            session_completed(), SessionState(), policy({"sample_rate": 0.0}), "sampled_out", id="empty-sample"
        ),
        pytest.param(session_completed(is_stale=True), SessionState(), policy(), "stale", id="stale"),
    ],
)
def test_disposition(request_: Request, state: SessionState, of: Policy, disposition: str) -> None:
    decision = admit(request_, state, of)

    assert decision.disposition == disposition
    assert (decision.new_score is not None) == (disposition == "accepted")


@pytest.mark.parametrize(
    ("disposition", "said"),
    [("in_progress", RUNNING.score_id), ("already_scored", SCORED)],
)
def test_an_answered_request_names_the_score_that_answers_it(disposition: str, said: uuid.UUID) -> None:
    state = SessionState(open=RUNNING) if disposition == "in_progress" else scored()

    decision = admit(session_completed(), state, policy())

    assert (decision.disposition, decision.score_id) == (disposition, said)


@pytest.mark.parametrize(
    ("of", "changes", "disposition"),
    [
        pytest.param(policy({"sample_rate": 0.0}, enabled=False), {"is_stale": True}, "stale", id="stale-first"),
        pytest.param(policy({"sample_rate": 0.0}, enabled=False), {"session_status": "failed"}, "disabled", id="then"),
        pytest.param(policy({"sample_rate": 0.0}), {"session_status": "failed"}, "status_not_scored", id="then-status"),
        pytest.param(policy({"sample_rate": 0.0}), {}, "sampled_out", id="then-sample"),
        pytest.param(policy(), {}, "in_progress", id="then-running"),
    ],
)
def test_the_first_reason_is_the_one_that_is_told(of: Policy, changes: dict[str, Any], disposition: str) -> None:
    """The order of checks: stale, disabled, status, sample, running, scored."""
    state = running()
    state.completed = scored().completed

    assert admit(session_completed(**changes), state, of).disposition == disposition


@pytest.mark.parametrize(
    "of", [policy(enabled=False), policy({"enabled": False}), policy({"sample_rate": 0.0, "auto_score_statuses": ()})]
)
def test_whoever_asks_in_particular_is_not_filtered(of: Policy) -> None:
    assert admit(rescore(session_status="failed"), SessionState(), of).disposition == "accepted"


@pytest.mark.parametrize(
    ("request_chain", "stored_chain", "used"),
    [
        pytest.param("cli", "kubernetes", "cli", id="event"),
        pytest.param(None, "cli", "cli", id="stored"),
        pytest.param(None, None, None, id="nobody-knows"),
        pytest.param("never-configured", None, "never-configured", id="unconfigured"),
    ],
)
def test_chain_of_a_request(request_chain: str | None, stored_chain: str | None, used: str | None) -> None:
    of = policy(cli={"criteria": OTHER_CRITERIA})

    new = admit(session_completed(chain_id=request_chain), SessionState(chain_id=stored_chain), of).new_score

    assert new is not None
    expected = {"cli": OTHER_CRITERIA, "never-configured": DEFAULT_CRITERIA}.get(used or "")
    assert (new.chain_id, new.criteria) == (used, expected)
    assert new.criteria_hash == (HASHES[expected] if expected else None)


def test_the_chain_of_the_event_decides_about_filters() -> None:
    of = policy({"auto_score_statuses": ["failed"]}, cli={"enabled": False})

    answers = [
        admit(session_completed(chain_id=chain, session_status="failed"), SessionState(), of).disposition
        for chain in ("cli", "kubernetes", None)
    ]

    assert answers == ["disabled", "accepted", "accepted"]


def test_unknown_criteria_make_a_score_that_can_fail_visibly() -> None:
    for force in (True, False):
        new = admit(rescore(criteria="no-such", force=force), scored(), policy()).new_score

        assert new is not None
        assert (new.criteria, new.criteria_hash) == ("no-such", None)


@pytest.mark.parametrize(
    ("state", "criteria", "disposition"),
    [
        pytest.param(running("renamed", HASHES[DEFAULT_CRITERIA]), DEFAULT_CRITERIA, "in_progress", id="same-hash"),
        pytest.param(running(DEFAULT_CRITERIA, "older-hash"), DEFAULT_CRITERIA, "deferred", id="edited-since"),
        pytest.param(running("no-such", None), "no-such", "in_progress", id="same-unknown-name"),
        pytest.param(running("no-such", None), DEFAULT_CRITERIA, "deferred", id="other-name"),
        pytest.param(running(None, None), DEFAULT_CRITERIA, "deferred", id="running-not-bound-yet"),
        pytest.param(SessionState(open=OpenScore(SCORED, None, None)), None, "in_progress", id="neither-is-bound-yet"),
    ],
)
def test_same_criteria_means_same_content(state: SessionState, criteria: str | None, disposition: str) -> None:
    """Hashes decide if both are known, because a name may have new content; else names decide."""
    assert admit(rescore(criteria=criteria), state, policy()).disposition == disposition


def test_only_the_newest_deferred_request_is_kept() -> None:
    state, older, newer = running(), rescore(criteria=OTHER_CRITERIA), rescore(criteria=OTHER_CRITERIA)

    first, second = admit(older, state, policy()), admit(newer, state, policy())

    assert (first.disposition, first.superseded) == ("deferred", None)
    assert (second.disposition, second.superseded) == ("deferred", older.request_id)
    assert state.deferred == newer.request_id


def test_state_follows_within_a_batch() -> None:
    state = SessionState(chain_id="kubernetes")

    dispositions = [
        admit(r, state, policy()).disposition
        for r in (session_completed(), session_completed(), rescore(criteria=OTHER_CRITERIA), rescore())
    ]

    assert dispositions == ["accepted", "in_progress", "deferred", "in_progress"]


@pytest.mark.parametrize("state", [SessionState(), running(), scored()], ids=["new", "running", "scored"])
def test_another_purpose_stands_beside_the_score(state: SessionState) -> None:
    before = copy.deepcopy(state)
    purposes: tuple[Purpose, ...] = ("consistency", "anchor", "shadow")
    for purpose, force in itertools.product(purposes, (True, False)):
        decision = admit(rescore(purpose=purpose, force=force), state, policy())

        assert (decision.disposition, state) == ("accepted", before)
        assert decision.new_score is not None
        assert decision.new_score.score_id == decision.score_id


@pytest.mark.parametrize(("force", "disposition"), [(True, "accepted"), (False, "already_scored")])
def test_promotion(force: bool, disposition: str) -> None:
    deferred = rescore(force=force, criteria=OTHER_CRITERIA)
    state = scored(OTHER_CRITERIA)

    decision = admit(deferred, state, policy())

    assert decision.disposition == disposition
    assert state.deferred is None
    assert (decision.score_id == SCORED) == (not force)


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.25, 0.5, 0.99, 1.0])
def test_a_sample_has_its_size(rate: float) -> None:
    """Within four standard deviations; 0 and 1 are exact."""
    drawn = sum(is_sampled(f"session-{n}", rate) for n in range(20_000))

    tolerance = 4 * (20_000 * rate * (1 - rate)) ** 0.5
    assert abs(drawn - 20_000 * rate) <= tolerance


def test_samples_are_stable_and_nested() -> None:
    ids = [f"session-{n}" for n in range(20_000)]
    samples = [{i for i in ids if is_sampled(i, rate)} for rate in (0.1, 0.3, 0.9)]

    assert samples[0] < samples[1] < samples[2]
    assert samples[1] == {i for i in ids if is_sampled(i, 0.3)}
    # Pinned: another hash would sample other sessions after an upgrade.
    assert [n for n in range(20) if is_sampled(f"session-{n}", 0.5)] == [0, 2, 8, 16, 19]


def test_a_re_score_that_names_no_criteria_means_what_is_running_under_the_defaults() -> None:
    bound = SessionState(open=OpenScore(RUNNING.score_id, DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA]))
    other = SessionState(open=OpenScore(RUNNING.score_id, OTHER_CRITERIA, HASHES[OTHER_CRITERIA]))

    assert admit(rescore(), bound, policy()).disposition == "in_progress"
    assert admit(rescore(), other, policy()).disposition == "deferred"


@pytest.mark.parametrize(
    ("chains", "disposition"),
    [
        pytest.param({}, "disabled", id="no-chain-could-want-it"),
        pytest.param({"cli": {"enabled": False}}, "disabled", id="the-only-chain-does-not-want-it"),
        pytest.param({"cli": {"enabled": True}}, "accepted", id="some-chain-may-want-it"),
    ],
)
def test_an_event_without_a_chain_waits_for_its_session_where_a_chain_may_want_it(
    chains: dict[str, dict[str, bool]], disposition: str
) -> None:
    """The first claim learns the chain from the source and decides then."""
    of = policy({"enabled": False}, **chains)

    assert admit(session_completed(chain_id=None), SessionState(), of).disposition == disposition
