"""
Rolling signals under a day of scores: `python -m benchmarks.insights` [--scores N] [--chains N] [--json].

One worker on an embedded broker takes in scores that ended within 24 h, all of them waiting when it begins; then it is
killed, and another one restores what it kept. Printed: events per second, memory, time to restore.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic_core import to_json

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.clients import Publisher
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.signals.faust_app import topics_of_insights
from tarsy_scoring_lab.broker import choose_broker

DAY_S = 86_400
PUBLISH_TIMEOUT_S = 60
BATCH = 5_000


@dataclass
class Measured:
    """Megabytes are 2^20 bytes; `peak` is what the process ever had at once."""

    scores: int
    chains: int
    take_in_s: float
    scores_per_s: float
    rss_mb: int
    peak_rss_mb: int
    restore_s: float
    restored_rss_mb: int
    restored_peak_rss_mb: int


def event(number: int, ended_at_s: float, chance: random.Random, chains: int) -> dict[str, Any]:
    """A score that ended, as the relay sends it."""
    at_us = int(ended_at_s * 1e6)
    at = datetime.fromtimestamp(ended_at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    shared = {
        "event_id": str(uuid.UUID(int=chance.getrandbits(128))),
        "score_id": str(uuid.UUID(int=chance.getrandbits(128))),
        "request_id": str(uuid.UUID(int=chance.getrandbits(128))),
        "session_id": f"session-{number}",
        "chain_id": f"chain-{chance.randrange(chains)}",
        "purpose": "production",
        "sequence": 6,
        "position": number + 1,
        "attempt": 1,
        "timestamp": at,
        "timestamp_us": at_us,
        "completed_at": at,
    }
    if chance.random() < 0.05:
        return shared | {
            "type": "scoring.failed",
            "status": "failed",
            "error_kind": "no_score_in_answer",
            "error_message": "-",
        }
    return shared | {
        "type": "scoring.completed",
        "total_score": chance.randrange(101),
        "outcome": "pass",
        "criteria": "investigation-methodology",
        "criteria_hash": "c" * 64,
        "judge_fingerprint": "f" * 64,
        "failure_tags": chance.sample(["loop", "no_evidence", "wrong_conclusion"], chance.randrange(3)),
        "flags": [],
        "usage": {"input_tokens": 40_000, "output_tokens": 2_000, "cost_usd": round(chance.random() / 10, 6)},
        "score_triggered_by": "auto",
        "alert_type": "PodCrashLoop",
        "labels": {"guidance": "v2"},
    }


async def publish_day(settings: Settings, scores: int, chains: int) -> None:
    """Put a day of scores onto the topic, in the order in which they ended."""
    chance, publisher, begin = random.Random(8), Publisher(settings), time.time() - DAY_S
    for first in range(0, scores, BATCH):
        events = [
            event(n, begin + DAY_S * n / scores, chance, chains) for n in range(first, min(first + BATCH, scores))
        ]
        messages = [(e["session_id"].encode(), to_json(e), ()) for e in events]
        await publisher.publish(settings.topic_scoring_events, messages, PUBLISH_TIMEOUT_S)
    await publisher.stop()


class Worker:
    """A running `tarsy-scoring insights`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = psutil.Process(process.pid)
        self._port = port

    async def rows(self) -> int:
        text = await asyncio.to_thread(self._metrics)
        found = re.search(r"^tarsy_scoring_insights_rows (\S+)$", text, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def _metrics(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:  # it does not listen yet
            return ""

    async def keeps(self, rows: int) -> float:
        """Wait until it keeps so many scores; gives the seconds."""
        begin = time.monotonic()
        while await self.rows() < rows:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        return time.monotonic() - begin

    def memory_mb(self) -> tuple[int, int]:
        """Now, and at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        return self._process.memory_info().rss >> 20, int(peak[1]) >> 10 if peak else 0


@asynccontextmanager
async def running(env: dict[str, str], folder: Path) -> AsyncIterator[Worker]:
    """A worker that is killed in the end."""
    with (folder / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tarsy_scoring", "insights"), env=os.environ | env, cwd=folder, stderr=log
        )
    try:
        yield Worker(process, int(env["SCORING_METRICS_PORT"]))
    finally:
        process.kill()
        await process.wait()


async def measure(scores: int, chains: int) -> Measured:
    """All of it, on a broker of its own."""
    broker, _ = await choose_broker("auto")
    async with broker:
        env = {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "SCORING_CREATE_TOPICS": "true",
            "SCORING_KAFKA_SESSION_TIMEOUT_S": "6",
            "SCORING_METRICS_PORT": "29127",
        }
        settings = load_settings(env)
        await ensure_topics(settings, *topics_of_insights(settings))
        await publish_day(settings, scores, chains)
        with tempfile.TemporaryDirectory() as folder:
            async with running(env, Path(folder)) as worker:
                await worker.keeps(1)
                take_in_s = await worker.keeps(scores)
                await asyncio.sleep(5)  # what it publishes then is part of what it needs
                rss, peak = worker.memory_mb()
            async with running(env, Path(folder)) as worker:
                restore_s = await worker.keeps(scores)
                await asyncio.sleep(5)
                restored_rss, restored_peak = worker.memory_mb()
    rate = round(scores / take_in_s, 1)
    return Measured(
        scores, chains, round(take_in_s, 1), rate, rss, peak, round(restore_s, 1), restored_rss, restored_peak
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=100_000)
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    measured = asdict(asyncio.run(measure(arguments.scores, arguments.chains)))
    print(json.dumps(measured) if arguments.json else "\n".join(f"{k:22} {v:>12}" for k, v in measured.items()))


if __name__ == "__main__":
    main()
