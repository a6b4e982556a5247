"""Admission of requests as tables: every disposition, and which of several reasons counts."""

import copy
import itertools
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from builders import DEFAULT_CRITERIA, HASHES, OTHER_CRITERIA, policy, rescore, session_completed
from tarsy_scoring.events import Purpose
from tarsy_scoring.queue.admission import OpenScore, Policy, Request, SessionState, admit, decide, is_sampled
from tarsy_scoring.references.model import Reference

SCORED, RUNNING = uuid.uuid4(), uuid.uuid4()


def running(criteria: str | None = DEFAULT_CRITERIA, criteria_hash: str | None = HASHES[DEFAULT_CRITERIA]) -> Any:
    return SessionState(chain_id="kubernetes", open=OpenScore(RUNNING, criteria, criteria_hash))


def scored(criteria: str = DEFAULT_CRITERIA, reference: uuid.UUID | None = None) -> SessionState:
    return SessionState(chain_id="kubernetes", completed={(HASHES[criteria], reference): SCORED})


def disposition(request: Request, state: SessionState | None = None, of: Policy | None = None) -> str:
    return admit(request, state or SessionState(), of or policy()).disposition


def test_each_request_has_its_disposition() -> None:
    new, no_chain = SessionState(), {"auto_score_statuses": ()}
    event, others = session_completed(), {"criteria": OTHER_CRITERIA}
    table = [
        (event, new, policy(), "accepted"),
        (rescore(), new, policy(), "accepted"),
        (event, running(), policy(), "in_progress"),
        (rescore(), running(), policy(), "in_progress"),
        (rescore(**others), running(), policy(), "deferred"),
        (rescore(), running(OTHER_CRITERIA, HASHES[OTHER_CRITERIA]), policy(), "deferred"),
        (event, scored(), policy(), "already_scored"),
        (event, scored(OTHER_CRITERIA), policy(), "accepted"),
        (rescore(force=False), scored(), policy(), "already_scored"),
        (rescore(force=False, **others), scored(), policy(), "accepted"),
        (rescore(force=False, **others), scored(OTHER_CRITERIA), policy(), "already_scored"),
        (rescore(), scored(), policy(), "accepted"),
        (event, new, policy(enabled=False), "disabled"),
        (event, new, policy(kubernetes={"enabled": False}), "disabled"),
        (session_completed(session_status="failed"), new, policy(), "status_not_scored"),
        (session_completed(session_status="exploded"), new, policy(), "status_not_scored"),
        (event, new, policy({"sample_rate": 0.0}), "sampled_out"),
        (session_completed(is_stale=True), new, policy(), "stale"),
        # A request by a person is not filtered.
        (rescore(session_status="failed"), new, policy(enabled=False), "accepted"),
        (rescore(session_status="failed"), new, policy({"enabled": False}), "accepted"),
        (rescore(session_status="failed"), new, policy({"sample_rate": 0.0} | no_chain), "accepted"),
    ]
    answers = {"accepted": None, "in_progress": RUNNING, "already_scored": SCORED}
    for row, (request, state, of, expected) in enumerate(table):
        decision = admit(request, copy.deepcopy(state), of)

        assert decision.disposition == expected, row
        if expected != "accepted":
            assert decision.score_id == answers.get(expected), row


def test_the_first_reason_counts() -> None:
    """The order of checks: stale, disabled, status, sample, running, scored."""
    table: list[tuple[Policy, dict[str, Any], str]] = [
        (policy({"sample_rate": 0.0}, enabled=False), {"is_stale": True}, "stale"),
        (policy({"sample_rate": 0.0}, enabled=False), {"session_status": "failed"}, "disabled"),
        (policy({"sample_rate": 0.0}), {"session_status": "failed"}, "status_not_scored"),
        (policy({"sample_rate": 0.0}), {}, "sampled_out"),
        (policy(), {}, "in_progress"),
    ]
    for of, changes, expected in table:
        state = running()
        state.completed = scored().completed

        assert disposition(session_completed(**changes), state, of) == expected


def test_the_chain_of_the_event_precedes_the_stored_one() -> None:
    of = policy(cli={"criteria": OTHER_CRITERIA})
    table = [
        ("cli", "kubernetes", "cli", OTHER_CRITERIA),
        (None, "cli", "cli", OTHER_CRITERIA),
        (None, None, None, None),
        ("never-configured", None, "never-configured", DEFAULT_CRITERIA),
    ]
    for asked, stored, chain_id, criteria in table:
        new = admit(session_completed(chain_id=asked), SessionState(chain_id=stored), of)

        assert (new.chain_id, new.criteria) == (chain_id, criteria)
        assert new.criteria_hash == (HASHES[criteria] if criteria else None)


def test_an_event_without_a_chain_is_refused_only_by_all_chains() -> None:
    """The first claim learns the chain from the source and decides then."""
    failed = {"session_status": "failed"}
    of = policy({"auto_score_statuses": ["failed"]}, cli={"enabled": False})
    for chain, expected in (("cli", "disabled"), ("kubernetes", "accepted"), (None, "accepted")):
        assert disposition(session_completed(chain_id=chain, **failed), of=of) == expected
    chains: list[tuple[dict[str, Any], str]] = [
        ({}, "disabled"),
        ({"cli": {"enabled": False}}, "disabled"),
        ({"cli": {"enabled": True}}, "accepted"),
    ]
    for named, expected in chains:
        assert disposition(session_completed(chain_id=None), of=policy({"enabled": False}, **named)) == expected


def test_unknown_criteria_make_a_score_that_can_fail_visibly() -> None:
    for force in (True, False):
        new = admit(rescore(criteria="no-such", force=force), scored(), policy())

        assert (new.disposition, new.criteria, new.criteria_hash) == ("accepted", "no-such", None)


def test_same_criteria_means_same_content() -> None:
    """Hashes decide if both are known, because a name may have new content; else names decide."""
    table = [
        (running("renamed", HASHES[DEFAULT_CRITERIA]), DEFAULT_CRITERIA, "in_progress"),
        (running(DEFAULT_CRITERIA, "older-hash"), DEFAULT_CRITERIA, "deferred"),
        (running("no-such", None), "no-such", "in_progress"),
        (running("no-such", None), DEFAULT_CRITERIA, "deferred"),
        (running(None, None), DEFAULT_CRITERIA, "deferred"),
        (SessionState(open=OpenScore(SCORED, None, None)), None, "in_progress"),
        # Without a chain the default criteria apply, because the running score has read the session.
        (SessionState(open=OpenScore(RUNNING, DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])), None, "in_progress"),
        (SessionState(open=OpenScore(RUNNING, OTHER_CRITERIA, HASHES[OTHER_CRITERIA])), None, "deferred"),
    ]
    for row, (state, criteria, expected) in enumerate(table):
        assert disposition(rescore(criteria=criteria), state) == expected, row


def test_a_chain_with_notes_has_hashes_of_its_own() -> None:
    of = replace(policy(k={}), hashes_of_chains={"k": {DEFAULT_CRITERIA: "with-notes"}})
    new = admit(session_completed(chain_id="k"), SessionState(), of)
    assert (new.criteria, new.criteria_hash) == (DEFAULT_CRITERIA, "with-notes")
    assert [of.current_hash(DEFAULT_CRITERIA, chain) for chain in ("k", "other", None)] == [
        "with-notes",
        *[HASHES[DEFAULT_CRITERIA]] * 2,
    ]
    for known, expected in (("with-notes", "already_scored"), (HASHES[DEFAULT_CRITERIA], "accepted")):
        state = SessionState(chain_id="k", completed={(known, None): SCORED})
        assert disposition(rescore(force=False), state, of) == expected
    assert of.is_current(DEFAULT_CRITERIA, "with-notes")
    assert of.is_current(DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])
    assert not of.is_current(DEFAULT_CRITERIA, "older")


def test_only_the_newest_deferred_request_is_kept() -> None:
    state, older, newer = running(), rescore(criteria=OTHER_CRITERIA), rescore(criteria=OTHER_CRITERIA)

    first, second = admit(older, state, policy()), admit(newer, state, policy())

    assert (first.disposition, first.superseded) == ("deferred", None)
    assert (second.disposition, second.superseded) == ("deferred", older.request_id)
    assert state.deferred == newer.request_id


def test_another_purpose_does_not_touch_the_production_score() -> None:
    purposes: tuple[Purpose, ...] = ("consistency", "anchor", "shadow")
    for purpose, force, state in itertools.product(purposes, (True, False), (SessionState(), running(), scored())):
        before = copy.deepcopy(state)

        decision = admit(rescore(purpose=purpose, force=force), state, policy())

        assert (decision.disposition, state) == ("accepted", before)
        assert decision.score_id not in (None, RUNNING, SCORED)


def test_samples_have_their_size_are_stable_and_nested() -> None:
    ids = [f"session-{n}" for n in range(20_000)]
    samples = [{i for i in ids if is_sampled(i, rate)} for rate in (0.0, 0.01, 0.25, 0.5, 0.99, 1.0)]

    for rate, sample in zip((0.0, 0.01, 0.25, 0.5, 0.99, 1.0), samples, strict=True):
        four_deviations = 4 * (20_000 * rate * (1 - rate)) ** 0.5
        assert abs(len(sample) - 20_000 * rate) <= four_deviations
    assert all(smaller < larger for smaller, larger in itertools.pairwise(samples))
    # Pinned: another hash would sample other sessions after an upgrade.
    assert [n for n in range(20) if is_sampled(f"session-{n}", 0.5)] == [0, 2, 8, 16, 19]


# --- references ------------------------------------------------------------------------------------


def a_reference() -> Reference:
    return Reference(uuid.uuid4(), "a bad image", None, "ada", datetime(2026, 1, 1, tzinfo=UTC))


def referring(reference: Reference) -> Request:
    return rescore(reference=reference)


def test_score_is_made_against_the_reference_that_its_request_gives_or_finds() -> None:
    """A person's request takes the newest reference of the session unless it declines it; others take none."""
    given, stored = a_reference(), uuid.uuid4()
    knows = SessionState(chain_id="kubernetes", reference_id=stored)
    table = [
        (rescore(), SessionState(), None),
        (rescore(), knows, stored),
        (rescore(use_reference=False), knows, None),
        (referring(given), knows, given.reference_id),
        (session_completed(), knows, None),
        *((rescore(purpose=purpose), knows, None) for purpose in ("consistency", "anchor", "shadow")),
    ]
    for row, (request, state, expected) in enumerate(table):
        decision = admit(request, copy.deepcopy(state), policy())

        assert (decision.disposition, decision.reference_id) == ("accepted", expected), row


def test_score_without_the_reference_does_not_answer_a_request_with_it() -> None:
    """Neither an open score nor a completed one, nor the other way round; an automatic request joins any open one."""
    given = a_reference()
    same = given.reference_id

    def open_with(reference_id: uuid.UUID | None) -> SessionState:
        state = running()
        state.open = replace(state.open, reference_id=reference_id)
        return state

    def scored_with(reference_id: uuid.UUID | None) -> SessionState:
        state = scored(reference=reference_id)
        state.reference_id = same
        return state

    table = [
        (referring(given), open_with(None), "deferred"),
        (referring(given), open_with(same), "in_progress"),
        (referring(given), open_with(uuid.uuid4()), "deferred"),
        (rescore(use_reference=False), open_with(same), "deferred"),
        (session_completed(), open_with(same), "in_progress"),
        (session_completed(), scored_with(same), "accepted"),
        (session_completed(), scored_with(None), "already_scored"),
        (rescore(force=False), scored_with(None), "accepted"),
        (rescore(force=False), scored_with(same), "already_scored"),
    ]
    for row, (request, state, expected) in enumerate(table):
        assert admit(request, copy.deepcopy(state), policy()).disposition == expected, row


def test_request_over_http_is_answered_by_a_score_of_either_kind() -> None:
    for reference_id in (None, uuid.uuid4()):
        for request in (rescore(force=False), rescore(force=False, criteria=DEFAULT_CRITERIA)):
            state = scored(reference=reference_id)

            assert decide(request, state, policy()).disposition == "already_scored"
