"""
A worker that sends itself SIGKILL, or another signal, at an exact point of its work.

    python dying_worker.py POINT[:N] [options of `tarsy-scoring worker`]

It dies the N-th time (default 1) that it reaches the point; calls that found no work do not count. At the point
`read-SESSION` it dies each time it reads the timeline of that session. `DYING_SIGNAL` names a signal other than KILL.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Literal

from aiokafka import AIOKafkaProducer

from tarsy_scoring.cli import main
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.kafka.consumer import Consumer
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.outbox import outbox
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.queue.store import Store
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.durable_judge import Attempt
from tarsy_scoring.timeline.model import Timeline

When = Literal["before", "after", "after a flush"]

POINTS: dict[str, tuple[Any, str, When]] = {
    "before-accept": (Inbox, "accept", "before"),
    "accepted-not-committed": (Inbox, "_store", "after"),
    "after-accept": (Inbox, "accept", "after"),
    "before-offset-commit": (Consumer, "commit", "before"),
    "after-offset-commit": (Consumer, "commit", "after"),
    "after-claim": (Leases, "claim_due", "after"),
    "before-judge": (JudgeClient, "ask", "before"),
    "after-judge": (JudgeClient, "ask", "after"),
    "after-record": (Store, "record", "after"),
    "before-end": (Store, "end", "before"),
    "after-end": (Store, "end", "after"),
    "between-sends": (AIOKafkaProducer, "send", "after a flush"),
    "after-acknowledgement": (Publisher, "publish", "after"),
    "marked-not-committed": (outbox, "mark_published", "after"),
}


def die_at(owner: Any, name: str, when: When, nth: int) -> None:
    """Replace the coroutine function `name` of `owner` by one that ends the process around its n-th call."""
    original: Callable[..., Any] = getattr(owner, name)
    number = signal.Signals[f"SIG{os.environ.get('DYING_SIGNAL', 'KILL')}"]
    calls = 0

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if when == "after":
            result = await original(*args, **kwargs)
            is_counted = result not in ([], 0)
            calls += is_counted
            if calls == nth and is_counted:
                os.kill(os.getpid(), number)
            return result
        calls += 1
        if calls == nth:
            if when == "after a flush":  # the broker has the messages, this process has no acknowledgement
                await args[0].flush()
            os.kill(os.getpid(), number)
        return await original(*args, **kwargs)

    setattr(owner, name, wrapped)


def die_reading(session_id: str) -> None:
    """Make the process die when it reads the timeline of this session."""
    original = Scorer._fetch

    async def fetch(scorer: Scorer, attempt: Attempt) -> Timeline:
        if attempt.claimed.session_id == session_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(scorer, attempt)

    Scorer._fetch = fetch  # type: ignore[method-assign]


if __name__ == "__main__":
    point, _, nth = sys.argv[1].partition(":")
    if point.startswith("read-"):
        die_reading(point.removeprefix("read-"))
    else:
        die_at(*POINTS[point], int(nth or 1))
    sys.argv = ["tarsy-scoring", "worker", *sys.argv[2:]]
    main()
