"""The circuit of a timeline source: what opens it, when it is checked, and what a failed read means."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from attempting import a_timeline
from fakes import FakeSessions
from tarsy_scoring.errors import CallerRefused, StartRefused, TimelineUnavailable, WaitFor
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.scoring import watched_source
from tarsy_scoring.scoring.watched_source import COOL_DOWN_S, MOST_COOL_DOWN_S, SPREAD, WatchedSource
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import Timeline


class Faulty(FakeSessions):
    """Raises its next failure at each read, and its next objection at each check; None: it answers."""

    def __init__(self, failures: list[Exception | None], objections: list[Exception | None]) -> None:
        super().__init__(one=a_timeline())
        self.failures, self.objections = failures, objections
        self.checks = 0
        self.checked_at: list[float] = []

    async def fetch_timeline(self, session_id: str) -> Timeline:
        await asyncio.sleep(0)
        if (failure := self.failures.pop(0) if self.failures else None) is not None:
            raise failure
        return await super().fetch_timeline(session_id)

    async def check(self) -> None:
        self.checks += 1
        self.checked_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if (objection := self.objections.pop(0) if self.objections else None) is not None:
            raise objection


AWAY = TimelineUnavailable("away")
UNFIT = StartRefused("lacks the table stages")


async def test_an_outage_that_is_over_at_once_fails_no_read() -> None:
    """The check answers, and the second read succeeds."""
    source = Faulty([AWAY], [])

    timeline = await WatchedSource(source, Metrics()).fetch_timeline("one", AttemptClock(60))

    assert (timeline.session_id, source.checks) == ("one", 1)


async def test_many_reads_that_fail_at_once_share_one_check() -> None:
    source = Faulty([AWAY] * 16, [AWAY])
    watched = WatchedSource(source, Metrics())

    reads = (watched.fetch_timeline("one", AttemptClock(60)) for _ in range(16))
    ends = await asyncio.gather(*reads, return_exceptions=True)

    assert {type(end) for end in ends} == {WaitFor}
    assert source.checks == 1
    with pytest.raises(WaitFor):  # no read is tried while the circuit is open
        await watched.fetch_timeline("one", AttemptClock(60))


async def test_a_read_that_takes_too_long_is_checked_like_a_failure() -> None:
    for objections, error in (([], TimelineUnavailable), ([AWAY], WaitFor)):
        with pytest.raises(error):
            await WatchedSource(Faulty([], list(objections)), Metrics()).fetch_timeline("one", AttemptClock(0))


@pytest.mark.parametrize(
    ("longest_row_s", "last"), [(3600.0, WaitFor), (0.0, TimelineUnavailable)], ids=["soon", "late"]
)
async def test_a_row_of_sessions_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, longest_row_s: float, last: type[Exception]
) -> None:
    """A session that can be read ends the row. A row that lasts too long is the fault of its sessions."""
    monkeypatch.setattr(watched_source, "LONGEST_ROW_S", longest_row_s)
    watched = WatchedSource(FakeSessions(one=a_timeline(), a=AWAY, b=AWAY, c=AWAY), Metrics())

    async def read(session_id: str) -> type[Exception] | None:
        try:
            await watched.fetch_timeline(session_id, AttemptClock(60))
        except (TimelineUnavailable, WaitFor) as error:
            return type(error)
        return None

    ends = [await read(session_id) for session_id in ("a", "b", "one", "a", "b", "a", "c")]

    failed = TimelineUnavailable
    assert ends == [failed, failed, None, failed, failed, failed, last]


async def test_a_refused_caller_is_waited_for_without_a_check() -> None:
    source = Faulty([CallerRefused("401")], [])

    with pytest.raises(WaitFor, match="401") as raised:
        await WatchedSource(source, Metrics()).fetch_timeline("one", AttemptClock(60))

    assert source.checks == 0
    assert COOL_DOWN_S <= raised.value.due_s <= COOL_DOWN_S * (1 + SPREAD)


async def test_checks_become_rarer_until_the_source_answers(let_pass: Callable[[float], None]) -> None:
    """The cool-down doubles from 2 s to 30 s; begin and end of the outage are one log line each."""
    source, metrics = Faulty([], [AWAY] * 8), Metrics()
    watched = WatchedSource(source, metrics)
    with capture_logs() as lines:
        await watched.check()
        watching = asyncio.create_task(watched.watch())
        while watched.away is not None:
            for _ in range(10):
                await asyncio.sleep(0)
            let_pass(0.5)
        watching.cancel()

    pauses = [after - before for before, after in pairwise(source.checked_at)]
    expected = [min(COOL_DOWN_S * 2**n, MOST_COOL_DOWN_S) for n in range(8)]
    assert all(e <= pause <= e * (1 + SPREAD) + 5 for e, pause in zip(expected, pauses, strict=True)), pauses
    assert [line["event"] for line in lines] == ["source.away", "source.answers"]
    assert metrics.registry.get_sample_value("tarsy_scoring_source_away") == 0


async def test_an_unfit_source_refuses_the_start_and_is_waited_for_later() -> None:
    """It may be away first; once it was fit, an operator can mend it while the worker runs."""
    watched = WatchedSource(Faulty([], [AWAY, UNFIT, None, UNFIT]), Metrics())

    await watched.check()
    assert watched.away == "away"
    with pytest.raises(StartRefused, match="stages"):
        await watched.check()
    await watched.check()
    assert watched.away is None
    await watched.check()
    assert watched.away == "lacks the table stages"
