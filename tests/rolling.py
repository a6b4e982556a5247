"""Ended scores for tests of rolling figures, and the figures counted by hand."""

import random
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

CHAINS = ("kubernetes", "network", "größer", None)

STORE = Path(__file__).with_suffix(".sql").read_text("utf-8")

STORED = "SELECT * FROM session_scores"


def ended_score(ended_at: datetime, **columns: Any) -> dict[str, Any]:
    """A completed production score, as `STORE` takes it."""
    score_id = str(uuid.uuid4())
    return {
        "score_id": score_id,
        "session_id": f"session-{score_id}",
        "chain_id": "kubernetes",
        "purpose": "production",
        "status": "completed",
        "completed_at": ended_at.isoformat(),
        "total_score": 80,
        "failure_tags": [],
        "usage": {"cost_usd": 0.25},
        "error_kind": None,
        "criteria": "investigation",
        "flags": [],
        "reference": None,
    } | columns


def failed_score(
    ended_at: datetime, status: str = "failed", error_kind: str = "refused", **more: Any
) -> dict[str, Any]:
    return ended_score(ended_at, status=status, error_kind=error_kind, total_score=None, **more)


def random_score(chance: random.Random, ended_at: datetime, chains: tuple[str | None, ...] = CHAINS) -> dict[str, Any]:
    """A score of any kind that can be stored."""
    shared = {"chain_id": chance.choice(chains), "purpose": "shadow" if chance.random() < 0.1 else "production"}
    if chance.random() < 0.2:
        status = chance.choice(("failed", "timed_out", "cancelled"))
        of_status = (
            ("cancelled", "nothing_to_judge") if status == "cancelled" else ("refused", "worker_lost", "answer_cut")
        )
        kind = chance.choice(of_status)
        return failed_score(ended_at, status, kind, **shared)
    return ended_score(
        ended_at,
        total_score=chance.choice((None, *range(101))),
        failure_tags=chance.sample(["loop", "no_evidence", "wrong"], chance.randrange(3)),
        criteria=chance.choice(("investigation",) * 4 + ("triage",)),
        flags=chance.choice(([],) * 4 + (["ungrounded"], ["mostly_unseen"])),
        reference=chance.choice((None,) * 4 + ({"text": "the disk"},)),
        session_id=f"session-{chance.randrange(300)}",
        usage=chance.choice((None, {"cost_usd": None}, {"cost_usd": round(chance.random(), 9)})),
        **shared,
    )


def windows_by_hand(
    rows: Iterable[Mapping[str, Any]], chain: str | None, ends: Mapping[str, str], threshold: float | None = None
) -> dict[str, Any]:
    """The figures of a chain, counted one row after the other, in the windows that end at `ends`."""
    production = [r for r in rows if r["purpose"] == "production"]
    latest: dict[str, Mapping[str, Any]] = {}
    for row in production:
        if row["status"] == "completed" and row["reference"] is None:
            latest[row["session_id"]] = max(row, latest.get(row["session_id"], row), key=lambda r: r["completed_at"])
    counted = {r["score_id"] for r in latest.values() if r["criteria"] == "investigation"}
    own = [dict(r) | {"counts": r["score_id"] in counted} for r in production if r["chain_id"] == chain]
    return {name: _window(own, name, datetime.fromisoformat(end), threshold) for name, end in ends.items()}


def _window(rows: list[Mapping[str, Any]], name: str, end: datetime, threshold: float | None) -> dict[str, Any]:
    start = end - timedelta(hours=int(name.removesuffix("h")))
    inside = [r for r in rows if r["completed_at"] is not None and start <= r["completed_at"] < end]
    completed = [r for r in inside if r["status"] == "completed"]
    without_number = [r["error_kind"] for r in inside if r["status"] != "completed"]
    sessions = [r for r in completed if r["counts"]]
    totals = [r["total_score"] for r in sessions if r["total_score"] is not None and "mostly_unseen" not in r["flags"]]
    costs = [r["usage"]["cost_usd"] for r in completed if (r["usage"] or {}).get("cost_usd") is not None]
    under = sum(threshold is not None and total < threshold for total in totals)
    return {
        "start": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "scores": len(completed),
        "scored": len(totals),
        "mean": sum(totals) / len(totals) if totals else None,
        "under_threshold": under,
        "threshold": threshold,
        "share_under_threshold": None if threshold is None or not totals else under / len(totals),
        "failures": Counter(kind for kind in without_number if kind != "nothing_to_judge"),
        "nothing_to_judge": without_number.count("nothing_to_judge"),
        "failure_tags": Counter(tag for r in sessions for tag in r["failure_tags"]),
        "cost_usd": round(sum(costs), 9) if costs else None,
    }
