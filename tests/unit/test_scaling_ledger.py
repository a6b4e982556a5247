"""What the simulation of a fleet counts as missing, made twice or delivered twice."""

import json
from uuid import UUID

from benchmarks.scaling import Ledger, shares

from tarsy_scoring.kafka.consumer import Record


def completed(session: str, score: int, position: int) -> Record:
    event = {"type": "scoring.completed", "score_id": str(UUID(int=score)), "position": position}
    value = json.dumps(event, separators=(",", ":")).encode()
    return Record("scoring-events", 0, position, 0, session.encode(), value, ())


def ledger_of(*records: Record) -> Ledger:
    ledger = Ledger(sent={"a": 0.0, "b": 0.0})
    ledger.take(records)
    return ledger


def test_each_session_with_one_score_is_complete() -> None:
    ledger = ledger_of(completed("a", 1, 1), completed("b", 2, 2))
    assert (ledger.missing, ledger.missing_events, ledger.repeated, ledger.twice) == (0, 0, 0, set())
    assert len(ledger.times) == 2


def test_a_session_without_a_score_and_a_gap_of_positions_are_missing() -> None:
    ledger = ledger_of(completed("a", 1, 3))
    assert (ledger.missing, ledger.missing_events) == (1, 2)


def test_a_second_score_is_made_twice_and_a_repeated_event_is_delivered_twice() -> None:
    ledger = ledger_of(completed("a", 1, 1), completed("a", 2, 2), completed("b", 3, 3), completed("b", 3, 3))
    assert (ledger.twice, ledger.repeated) == ({"a"}, 1)


def test_shares_are_percentiles() -> None:
    assert shares([0.001] * 99 + [2.0])["max"] == 2.0
    assert shares([1.0]) == {}
