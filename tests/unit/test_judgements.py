"""Summaries of ordered judgements: totals, cost and exit status, and reasons where there is no total."""

import uuid
from typing import Any

import pytest
from click.testing import CliRunner

from tables import table
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.studies.commands import compare, consistency
from tarsy_scoring.studies.commands.judging import OrderedJudgement, cost_in_words, cost_of, status_of

RUN = uuid.UUID("6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11")
USAGE = {"input_tokens": 1000, "cached_input_tokens": 0, "output_tokens": 200, "cost_usd": 0.01}


def judgement(total: int | None = 67, **changes: Any) -> OrderedJudgement:
    """A completed judgement."""
    said: dict[str, Any] = {
        "score_id": uuid.uuid4(),
        "session_id": "session-1",
        "status": "completed",
        "attempt": 1,
        "waiting_for": None,
        "criteria": "strict",
        "criteria_hash": "hash-strict",
        "judge_fingerprint": "judge-1",
        "band": None,
        "judge_outcome": None,
        "flags": [],
        "usage": USAGE,
        "error_kind": None,
        "error_message": None,
    }
    return OrderedJudgement(total_score=total, **(said | changes))


REFUSED = judgement(None, status="failed", error_kind="refused", judge_fingerprint=None)
PENDING = judgement(None, status="pending", usage=None, judge_fingerprint=None, waiting_for="retry")
NO_JUDGE = judgement(None, usage={**dict.fromkeys(USAGE)}, judge_fingerprint=None)


def test_cost_adds_up_known_amounts_and_counts_unknown_ones() -> None:
    """An unknown amount is never invented; 0 is known."""
    free, unpriced = judgement(usage=USAGE | {"cost_usd": 0.0}), judgement(usage=USAGE | {"cost_usd": None})
    for judgements, cost, words in (
        ([judgement(), judgement()], (2400, 0.02, 0), "0.0200 USD, 2,400 tokens"),
        ([judgement(), NO_JUDGE], (1200, 0.01, 1), "0.0100 USD, 1,200 tokens; unknown for 1"),
        ([unpriced], (1200, None, 1), "unknown, 1,200 tokens"),
        ([REFUSED, PENDING], (1200, 0.01, 0), "0.0100 USD, 1,200 tokens"),
        ([PENDING], (None, None, 0), "unknown"),
        ([free], (1200, 0.0, 0), "0.0000 USD, 1,200 tokens"),
    ):
        assert (tuple(cost_of(judgements).values()), cost_in_words(judgements)) == (cost, words)


def test_exit_status_is_0_only_if_every_judgement_has_a_total() -> None:
    """A total of 0 is one."""
    others = [judgement(0), REFUSED, PENDING, NO_JUDGE]
    assert [status_of([judgement(), other]) for other in others] == [0, 1, 1, 1]


# --- consistency ---------------------------------------------------------------------------------------


def test_consistency_counts_only_judgements_with_a_total() -> None:
    """Totals are in the order of the judgements."""
    judgements = [
        judgement(70, flags=["ungrounded"]),
        REFUSED,
        judgement(50, flags=["ungrounded", "self_judged"]),
        PENDING,
        judgement(74),
    ]

    document = consistency.document_of(RUN, judgements)

    assert document["totals"] == [70, 50, 74]
    assert (document["spread"]["width"], document["spread"]["median"], document["outstanding"]) == (24, 70, 1)
    assert document["spread"]["standard_deviation"] == pytest.approx(12.858, abs=0.001)
    assert document["flip_rate"]["pairs"] == 3
    assert document["flags"] == {"ungrounded": 2, "self_judged": 1}
    assert document["judge_fingerprints"] == ["judge-1"]
    assert [j.error_kind for j in document["judgements"]] == [None, "refused", None, None, None]
    assert document["judgements"][3].waiting_for == "retry"


def test_consistency_without_totals_gives_the_reason() -> None:
    """Criteria that are not bound yet are null."""
    unbound = judgement(None, status="pending", criteria=None, criteria_hash=None, usage=None)

    document = consistency.document_of(RUN, [unbound, unbound])

    assert (document["criteria"], document["spread"]["width"], document["flip_rate"]["rate"]) == (None, None, None)
    assert document["spread"]["reason"]


# --- compare -------------------------------------------------------------------------------------------


def test_comparison_is_the_second_criteria_minus_the_first() -> None:
    """Only sessions with both totals count, and their mean has an interval."""
    totals = {"a": (60, 70), "b": (50, 48), "c": (40, None), "d": (50, 56), "e": (50, 55), "f": (50, 51)}
    found = {}
    for session, both in totals.items():
        for name, total in zip(("strict", "lenient"), both, strict=True):
            kind = {} if total is not None else {"status": "failed", "error_kind": "refused"}
            said = judgement(total, session_id=session, criteria=name, criteria_hash=f"hash-{name}", **kind)
            found[Order(session, "shadow", name)] = said

    document = compare.document_of(RUN, ("strict", "lenient"), list(totals), found)

    assert [s["difference"] for s in document["sessions"]] == [10, -2, None, 6, 5, 1]
    assert [tuple(j.total_score for j in s["judgements"]) for s in document["sessions"]] == list(totals.values())
    assert (document["differences"]["n"], document["differences"]["mean"]) == (5, 4)
    mean = document["mean_difference"]
    assert mean["low"] < mean["value"] == 4 < mean["high"]
    assert document["criteria"] == [
        {"name": "strict", "criteria_hash": "hash-strict"},
        {"name": "lenient", "criteria_hash": "hash-lenient"},
    ]


# --- invalid arguments ---------------------------------------------------------------------------------


@table
def test_invalid_arguments_end_with_status_2(arguments: list[str]) -> None:
    """They are refused before anything is ordered, and without a database."""
    assert CliRunner().invoke(consistency.consistency, arguments).exit_code == 2
