"""Messages of the insights topic for tests of live events."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.kafka.consumer import Record

START_US = 1_700_000_000_000_000


def now_us() -> int:
    return time.time_ns() // 1000


def window(**figures: Any) -> dict[str, Any]:
    """The figures of one window in which no score is under the threshold."""
    return {
        "start": "2026-01-05T10:00:00Z",
        "end": "2026-01-05T11:00:00Z",
        "scores": 4,
        "scored": 4,
        "mean": 81.25,
        "under_threshold": 0,
        "threshold": 50,
        "share_under_threshold": 0.0,
        "failures": {},
        "nothing_to_judge": 0,
        "failure_tags": {},
        "cost_usd": 0.5,
    } | figures


def windows(chain_id: str | None, timestamp_us: int = START_US, **figures: Any) -> dict[str, Any]:
    """A message with the windows of a chain, both with these figures."""
    return {
        "type": "scoring.windows",
        "chain_id": chain_id,
        "timestamp": "2026-01-05T10:59:00Z",
        "timestamp_us": timestamp_us,
        "windows": {"1h": window(**figures), "24h": window(**figures)},
    }


def drift(timestamp_us: int = START_US, **more: Any) -> dict[str, Any]:
    """A `scoring.drift_detected` message whose cause is the judge."""
    return {
        "type": "scoring.drift_detected",
        "event_id": str(uuid.uuid4()),
        "timestamp": "2026-01-05T10:59:00Z",
        "timestamp_us": timestamp_us,
        "chain_id": "chain-a",
        "criteria_hash": "c" * 64,
        "cause": "judge",
        "is_clear": True,
        "old_fingerprint": "a" * 64,
        "new_fingerprint": "b" * 64,
        "size_points": -8.2,
        "interval": [-10.5, -5.9],
        "judge": {},
        "agents": {},
        "began_at": "2026-01-05T09:00:00Z",
        "meaning": ["The judge became stricter."],
    } | more


def key_of(message: Mapping[str, Any]) -> bytes:
    """The Kafka key of a message."""
    if message["type"] == "scoring.drift_detected":
        return f"drift:{message['event_id']}".encode()
    return (message["chain_id"] or "").encode()


def record(message: Mapping[str, Any] | bytes | None, key: bytes | None = None) -> Record:
    """The Kafka record of a message, under its own key unless another is given."""
    value = to_json(message) if isinstance(message, Mapping) else message
    own = key_of(message) if isinstance(message, Mapping) else None
    return Record("scoring-insights", 0, 0, 0, own if key is None else key, value, ())
