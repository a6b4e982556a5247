"""
Many workers of the service whose judge only waits, forked from one process after its imports.

A worker claims, renews, takes back, takes in and publishes with the code of the service. Only the attempt is replaced:
it reads no session, waits twice as long as a call of the judge takes, and stores two small turns and the end.
SIGTERM drains all workers.

    python -m benchmarks.scaling_workers FOLDER WORKERS INTAKES RELAYS JUDGE_SECONDS
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from tarsy_scoring.commands.worker import run_worker
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.judge.verdict import MissingTool, Turn, TurnKind
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import Ending, Step, StoredTurn
from tarsy_scoring.scores.fields import no_results
from tarsy_scoring.scoring.attempt import PUBLISHED, Finished, Scorer
from tarsy_scoring.scoring.score_columns import sum_usage
from tarsy_scoring.telemetry.health import run_until_signalled
from tarsy_scoring.telemetry.logging import set_up_logging
from tarsy_scoring.wiring import Role

_TOOLS = ("none", "get-node-events", "read-file")
_PR_SET_PDEATHSIG = 1
_HASH = "0" * 64


class WaitingAttempts:
    """
    Attempts with the writes of two turns, in place of `Scorer.attempt`.

    Args:
        judge_s: Seconds that each of the two turns takes.
    """

    def __init__(self, judge_s: float) -> None:
        self._judge_s = judge_s
        self.claim_latencies_s: list[tuple[float, float]] = []  # with the time of the claim

    async def attempt(
        self, scorer: Scorer, claimed: ClaimedScore, *, on_judged: Callable[[], None] = lambda: None
    ) -> Finished:
        """See `Scorer.attempt`."""
        self.claim_latencies_s.append((round(time.time(), 1), round(claimed.age_s, 4)))
        store = scorer.store
        announcing = asyncio.create_task(store.record(Step(claimed, "analyzing_methodology")))
        await asyncio.sleep(self._judge_s)
        await announcing
        first = self._turn(1, "analysis", claimed)
        await store.record(Step(claimed, "identifying_missing_tools", [first]))
        await asyncio.sleep(self._judge_s)
        last = self._turn(2, "missing_tools", claimed)
        on_judged()
        await store.end(self._ending(claimed, [first, last]))
        return Finished("completed")

    def _turn(self, ordinal: int, kind: TurnKind, claimed: ClaimedScore) -> StoredTurn:
        turn = Turn(kind, "short", "judge", "model", "model", 100, 0, 10, 0.0001, int(self._judge_s * 1000), "stop")
        return StoredTurn(ordinal, claimed.criteria_hash or _HASH, _HASH, claimed.nonce, _HASH, turn)

    def _ending(self, claimed: ClaimedScore, turns: list[StoredTurn]) -> Ending:
        n = claimed.score_id.int
        columns: dict[str, Any] = no_results() | {
            "status": "completed",
            "spent_s": 2 * self._judge_s,
            "attempts_burned": 0,
            "usage": sum_usage(t.turn for t in turns),
            "total_score": 40 + n % 50,
            "score_analysis": "short",
            "judge_fingerprint": _HASH,
        }
        event = {
            "criteria": claimed.criteria,
            "criteria_hash": claimed.criteria_hash,
            "score_triggered_by": claimed.score_triggered_by,
            "alert_type": claimed.alert_type,
            "labels": dict(claimed.labels),
            "interaction": None,
        } | {name: columns[name] for name in PUBLISHED}
        missing = [MissingTool(_TOOLS[n % 3], "short")] if n % 3 else []
        return Ending(
            claimed, columns, NewEvent(claimed.score_id, "scoring.completed", event), missing, turns=turns[1:]
        )


def run_one(folder: Path, number: int, roles: tuple[Role, ...], judge_s: float) -> None:
    """Run one worker until SIGTERM, then leave its figures in the folder."""
    settings = load_settings()
    set_up_logging(settings.log_level, settings.log_format)
    attempts = WaitingAttempts(judge_s)

    async def attempt(scorer: Scorer, claimed: ClaimedScore, **how: Any) -> Finished:
        return await attempts.attempt(scorer, claimed, **how)

    Scorer.attempt = attempt  # type: ignore[method-assign]
    uvloop.run(run_until_signalled(lambda stopping: run_worker(settings, roles, stopping)))
    figures = {"cpu_s": time.process_time(), "claim_latencies_s": attempts.claim_latencies_s}
    (folder / f"worker-{number}.json").write_text(json.dumps(figures))


def end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent dies. Needs Linux."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    """Fork the workers and wait for all of them; exit status 1: one of them failed."""
    end_with_parent()
    folder, workers, intakes, relays = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    judge_s = float(sys.argv[5])
    gc.collect()
    gc.freeze()  # the workers share these pages
    pids: set[int] = set()
    for number in range(workers):
        roles: tuple[Role, ...] = ("judging",)
        roles = (("intake",) if number < intakes else ()) + roles + (("relay",) if number >= workers - relays else ())
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            try:
                run_one(folder, number, roles, judge_s)
            except BaseException:  # noqa: BLE001 - a fork must never return into the loop
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.add(pid)
    stopping = {signal.SIGTERM, signal.SIGINT}

    def stop(*_: object) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    for number in stopping:
        signal.signal(number, stop)
    failed = 0
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if status:
            failed += 1
            stop()  # the measurement is void without one of them
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
