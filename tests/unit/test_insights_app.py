"""What the stream app does with a record, without brokers: what it counts, what it acknowledges, when it gives up."""

import asyncio
import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from faust.auth import OAuthCredentials, SASLCredentials

from infrastructure import wait_until
from tarsy_scoring.commands import insights as run_module
from tarsy_scoring.commands.insights import insights as command
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.kafka.topics import Place
from tarsy_scoring.signals import app as module
from tarsy_scoring.signals.app import Insights, InsightsBroken, chain_of
from tarsy_scoring.signals.faust_app import StuckWatch, credentials, faust_app, topics_of_insights
from tarsy_scoring.signals.windows import EndedScore, read_ended
from tarsy_scoring.telemetry.metrics import INSIGHTS_RESULTS, Metrics

ENV = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "one:9092, [::1]:9093", "SCORING_KAFKA_GROUP": "g"}
COMPLETED = json.loads(
    (Path(__file__).resolve().parents[2] / "schemas/examples/scoring-completed.json").read_text("utf-8")
)
FAILED = json.loads((Path(__file__).resolve().parents[2] / "schemas/examples/scoring-failed.json").read_text("utf-8"))


# --- what an event says --------------------------------------------------------------------------------


def read(event: dict[str, Any], **changes: Any) -> tuple[str, str, EndedScore] | None:
    return read_ended(json.dumps(event | changes).encode())


def test_a_completed_score_is_read() -> None:
    """By the time of its row, and not of its event."""
    found = read(
        COMPLETED,
        completed_at="2026-03-02T10:00:00.000001Z",
        failure_tags=["loop"],
        total_score=71,
        usage={"cost_usd": 0.25},
    )

    at_us = 1_772_445_600_000_001
    assert found == ("kubernetes", COMPLETED["score_id"], EndedScore(at_us, 71, None, ("loop",), 250_000_000))


def test_a_failure_is_read() -> None:
    """It has a kind and no number; an event of older versions is taken by its own time."""
    event = {name: value for name, value in FAILED.items() if name != "completed_at"}

    found = read(event, chain_id=None)

    assert found == ("", FAILED["score_id"], EndedScore(FAILED["timestamp_us"], error_kind="no_score_in_answer"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"type": "scoring.started"}, id="a-start"),
        pytest.param({"type": "of-a-later-version"}, id="unknown-type"),
        pytest.param({"purpose": "anchor"}, id="an-anchor"),
        pytest.param({"purpose": "shadow"}, id="a-shadow"),
    ],
)
def test_only_ends_of_production_scores_count(changes: dict[str, str]) -> None:
    """What else is on the topic is passed over."""
    assert read(COMPLETED, **changes) is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="not-json"),
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(json.dumps(COMPLETED | {"total_score": 101}).encode(), id="impossible-total"),
        pytest.param(json.dumps({"type": "scoring.failed", "purpose": "production"}).encode(), id="fields-missing"),
        pytest.param(json.dumps(COMPLETED | {"completed_at": "2026-03-02T10:15:52"}).encode(), id="time-without-zone"),
        pytest.param(json.dumps(COMPLETED | {"chain_id": "a\0b"}).encode(), id="nul-in-the-chain"),
        pytest.param(json.dumps(FAILED | {"score_id": "a\0b"}).encode(), id="nul-in-the-score"),
        pytest.param(json.dumps(COMPLETED | {"usage": {"cost_usd": 1e300}}).encode(), id="cost-beyond-reason"),
        pytest.param(json.dumps(COMPLETED | {"usage": {"cost_usd": -1}}).encode(), id="cost-below-nothing"),
        pytest.param(json.dumps(COMPLETED | {"usage": {"cost_usd": float("nan")}}).encode(), id="cost-not-a-number"),
    ],
)
def test_what_is_no_scoring_event_is_refused(value: bytes) -> None:
    """And with one kind of error, whatever is wrong with it."""
    with pytest.raises(ValueError, match=r".+"):
        read_ended(value)


# --- the app -------------------------------------------------------------------------------------------


class Record:
    """A record as Faust hands it to an agent."""

    def __init__(self, value: bytes | None, key: bytes = b"", offset: int = 0, generation: int = 1) -> None:
        self.value, self.key = value, key
        self.message = SimpleNamespace(
            topic="by-chain", partition=3, tp=("by-chain", 3), offset=offset, generation_id=generation
        )


class Rig:
    """The app with brokers that are told what to do: `answer` gives each send its fate."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.metrics = Metrics()
        self.app = Insights(load_settings(ENV | env), self.metrics, folder)
        self.app.is_ready = self.app._is_assigned = True
        self.sent: list[tuple[str, bytes, Any]] = []
        self.commits: list[dict[Any, int]] = []
        self.committed: int | None = None
        mine = [SimpleNamespace(topic="g-insights-by-chain", partition=3), SimpleNamespace(topic="events", partition=5)]
        consumer = SimpleNamespace(
            _commit=self._commit, assignment=lambda: mine, _committed_offset=defaultdict(lambda: self.committed)
        )
        self.app._app = SimpleNamespace(consumer=consumer, consumer_generation_id=1)
        self.fails: BaseException | None = None
        topics: Any = {"grouped": self.app._grouped, "published": self.app._published}
        for name, topic in topics.items():
            topic.send = self._sender(name)
        self.app._rows.send_changelog = self._change

    async def _commit(self, offsets: dict[Any, int]) -> bool:
        self.commits.append(offsets)
        return True

    async def agent(self, take: Callable[[Any], Any], *records: Record) -> None:
        """Let an agent take these, as Faust does."""

        async def events() -> AsyncIterator[Record]:
            for record in records:
                yield record

        await self.app._watched(take)(SimpleNamespace(events=events))

    def _sender(self, name: str) -> Callable[..., Any]:
        async def send(*, key: bytes, value: bytes) -> Any:
            self.sent.append((name, key, value))
            return self._fate()

        return send

    def _change(self, partition: int, key: bytes, value: bytes | None) -> Any:
        self.sent.append((f"row-{partition}", key, value))
        return self._fate()

    def _fate(self) -> "asyncio.Future[None]":
        fate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        fate.set_exception(self.fails) if self.fails else fate.set_result(None)
        return fate

    async def take(self, chain: str = "kubernetes", score: str = "one", offset: int = 0, **more: Any) -> None:
        """Count a score that arrives; `ago_s` it ended."""
        at_us = round((time.time() - more.pop("ago_s", 0)) * 1e6)
        value = score.encode() + b"\0" + EndedScore(more.pop("at_us", at_us), **({"total": 40} | more)).encode()
        await self.agent(self.app._count, Record(value, chain.encode(), offset))

    def results(self) -> dict[str, float]:
        value = self.metrics.registry.get_sample_value
        found = {r: value("tarsy_scoring_insights_events_total", {"result": r}) or 0.0 for r in INSIGHTS_RESULTS}
        return {r: n for r, n in found.items() if n}

    def published(self) -> list[dict[str, Any]]:
        return [json.loads(value) for name, _, value in self.sent if name == "published"]

    @property
    def kinds(self) -> list[str]:
        return [name for name, _, _ in self.sent]


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_a_score_is_a_row_and_then_a_message(rig: Rig) -> None:
    """The row goes where its chain is, under a name that holds the chain; its offset is committed in the end."""
    at_us = time.time_ns() // 1000
    rig.committed = 7
    await rig.take(at_us=at_us, offset=7)
    assert (rig.kinds, rig.commits) == (["row-3"], [])

    await rig.app.settle()

    assert rig.sent[0] == ("row-3", b"kubernetes\0one", EndedScore(at_us, 40).encode())
    assert chain_of(rig.sent[0][1]) == "kubernetes"
    [message] = rig.published()
    assert (message["type"], message["chain_id"], rig.sent[1][1]) == ("scoring.windows", "kubernetes", b"kubernetes")
    assert {name: w["under_threshold"] for name, w in message["windows"].items()} == {"1h": 1, "24h": 1}
    assert message["timestamp_us"] >= at_us
    assert rig.commits == [{("by-chain", 3): 8}]


async def test_scores_of_no_chain_are_a_chain_of_their_own(rig: Rig) -> None:
    """Their key is empty, their chain null."""
    await rig.take(chain="")
    await rig.app.settle()

    assert [(m["chain_id"], rig.sent[1][1]) for m in rig.published()] == [(None, b"")]


async def test_a_repeat_writes_no_row_and_is_published_again(rig: Rig) -> None:
    """Whoever counted it may have been killed before it published."""
    at_us = time.time_ns() // 1000
    await rig.take(at_us=at_us)
    await rig.app.settle()
    await rig.take(at_us=at_us, offset=1)
    await rig.app.settle()

    assert rig.kinds == ["row-3", "published", "published"]
    assert rig.published()[0]["windows"] == rig.published()[1]["windows"]
    assert rig.results() == {"counted": 1, "repeat": 1}
    assert rig.commits == [{("by-chain", 3): 1}, {("by-chain", 3): 2}]


async def test_many_scores_of_a_chain_are_one_message(rig: Rig) -> None:
    """Those that come between two publications are published together."""
    at_us = time.time_ns() // 1000
    for number in range(5):
        await rig.take(score=f"s-{number}", at_us=at_us, offset=number)
    await rig.app.settle()
    await rig.app.settle()

    assert [m["windows"]["1h"]["scores"] for m in rig.published()] == [5]
    assert rig.commits == [{("by-chain", 3): 5}]


@pytest.mark.parametrize(
    ("ago_s", "result"),
    [
        pytest.param(37 * 3600 - 60, "counted", id="in-time"),
        pytest.param(38 * 3600, "late", id="late"),
        pytest.param(-3500, "counted", id="clocks-differ"),
        pytest.param(-3700, "early", id="of-the-future"),
    ],
)
async def test_what_is_in_no_window_is_counted_as_that(rig: Rig, ago_s: int, result: str) -> None:
    """It leaves no row, and its offset is committed like others'."""
    await rig.take(ago_s=ago_s)
    await rig.app.settle()
    assert rig.commits == [{("by-chain", 3): 1}]

    assert rig.results() == {result: 1}
    assert ("row-3" in rig.kinds) == (result == "counted")


async def test_nothing_is_committed_that_the_brokers_did_not_keep(rig: Rig) -> None:
    """The row or the message may be lost: the record must come again."""
    rig.fails = TimeoutError()
    await rig.take()

    with pytest.raises(InsightsBroken, match="did not acknowledge"):
        await rig.app.settle()

    assert rig.commits == []


async def test_nothing_is_committed_behind_what_the_brokers_did_not_keep(rig: Rig) -> None:
    """Who settles next, be it before the process ends, would lose the records before."""
    rig.fails = TimeoutError()
    await rig.take()
    with pytest.raises(InsightsBroken, match="did not acknowledge"):
        await rig.app.settle()

    rig.fails = None
    await rig.take(score="two", offset=1)
    await rig.app.settle()

    assert rig.commits == []


async def test_nothing_is_committed_behind_what_was_cut_off(rig: Rig) -> None:
    """Asked to stop while brokers are waited for: what they keep in the end is not known any more."""
    rig.app._sends.append(asyncio.get_running_loop().create_future())
    await rig.take()
    settling = asyncio.create_task(rig.app.settle())
    await wait_until(lambda: "published" in rig.kinds, 30, "a settling that waits")
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)

    await rig.take(score="two", offset=1)
    await rig.app.settle()

    assert rig.commits == []


async def test_nothing_is_published_or_committed_while_chains_are_assigned(rig: Rig) -> None:
    """Somebody else may own them, and know more; what arrives yet comes again."""
    await rig.take()
    await rig.app._let_go(set())
    rig.app._app.consumer._committed_offset.clear()
    rig.committed = 1
    await rig.take(score="two", offset=1)
    await rig.app.settle()
    assert rig.published() == []
    rig.app.is_ready = rig.app._is_assigned = True
    await rig.app.settle()

    assert rig.commits == []


async def test_a_record_of_a_former_assignment_commits_nothing(rig: Rig) -> None:
    """Those before it were dropped with that assignment: a commit behind it would lose them. It comes again itself."""
    rig.committed = 5
    value = b"one\0" + EndedScore(time.time_ns() // 1000, 40).encode()
    await rig.agent(rig.app._count, Record(value, b"kubernetes", 5, generation=0))
    await rig.app.settle()

    assert (rig.kinds, rig.commits) == ([], [])


@pytest.mark.parametrize(
    ("committed", "missing", "offsets", "is_broken"),
    [
        pytest.param(5, (), (5, 6), False, id="goes-on"),
        pytest.param(5, (), (5, 6, 5, 6), False, id="comes-again"),
        pytest.param(5, (), (7,), True, id="first-ones-left-out"),
        pytest.param(5, (5,), (7,), True, id="one-of-two-left-out"),
        pytest.param(None, (), (1,), True, id="first-ones-left-out-at-the-first-start"),
        pytest.param(5, (), (5, 7), True, id="one-left-out-between"),
        pytest.param(5, (5, 6, 7, 8), (9, 10), False, id="deleted-by-retention"),
        pytest.param(5, (6,), (5, 7, 8), False, id="mark-of-a-transaction"),
    ],
)
async def test_records_that_were_left_out_end_the_process(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    committed: int | None,
    missing: tuple[int, ...],
    offsets: tuple[int, ...],
    is_broken: bool,
) -> None:
    """Before anything behind them is committed; unless the topic itself has them no more."""

    async def first_offset(_settings: Any, topic: str, partition: int, since: int) -> int:
        assert (topic, partition) == ("by-chain", 3)
        return next(offset for offset in range(since, 20) if offset not in missing)

    monkeypatch.setattr(module, "first_offset", first_offset)
    rig.committed = committed
    with contextlib.suppress(InsightsBroken):
        for number, offset in enumerate(offsets):
            await rig.take(score=f"s-{number}", offset=offset)

    assert rig.app._broken.done() == is_broken


class Reassigned:
    """Chains are divided anew while an agent asks whether the topic has records that it was not given."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def __call__(self, _settings: Any, _topic: str, _partition: int, since: int) -> int:
        app = self._rig.app
        await app._let_go(set())
        app._app.consumer_generation_id += 1
        await app._take_over(set())
        await app._restored()
        return 10 if since <= 10 else since  # those before were deleted by retention


async def test_a_record_of_a_former_assignment_hides_none_that_is_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after it in its new assignment begins where offsets are committed, and not behind that record."""
    monkeypatch.setattr(module, "first_offset", Reassigned(rig))
    rig.committed = 5
    await rig.take(offset=10)

    async def first_offset(*_: Any) -> int:
        return 5

    monkeypatch.setattr(module, "first_offset", first_offset)
    value = b"two\0" + EndedScore(time.time_ns() // 1000, 40).encode()
    with pytest.raises(InsightsBroken, match="from 5 to 8"):
        await rig.agent(rig.app._count, Record(value, b"kubernetes", 9, generation=2))


async def test_a_record_of_a_former_assignment_makes_no_windows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chain may be another process's now, whose windows are those of all its scores."""
    monkeypatch.setattr(module, "first_offset", Reassigned(rig))
    rig.committed = 5
    await rig.take(offset=10)
    await rig.app.settle()

    assert (rig.sent, rig.commits) == ([], [])


async def test_a_fault_of_an_agent_ends_the_process(rig: Rig) -> None:
    """Faust would start it again, behind the record that it failed at."""

    async def fail(_event: Any) -> None:
        raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        await rig.agent(fail, Record(b""))

    assert "planted" in str(rig.app._broken.exception())
    assert not rig.app._unsettled


async def test_a_row_that_may_be_lost_ends_the_process_before_its_chain_goes(rig: Rig) -> None:
    """In memory it would be taken for a repeat when the chain comes back, and be missing from the changelog."""
    rig.fails = TimeoutError()
    await rig.take()

    await rig.app._let_go(set())

    assert isinstance(rig.app._broken.exception(), InsightsBroken)


async def test_a_process_that_stood_still_publishes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have its chains, and have counted more."""
    await rig.take()
    later = time.monotonic() + 16
    monkeypatch.setattr(module.time, "monotonic", lambda: later)

    with pytest.raises(InsightsBroken, match="stood still for 16 s"):
        await rig.app.settle()

    assert rig.published() == []


async def test_restored_rows_are_summed_up_and_published(rig: Rig) -> None:
    """Those of our chains; others leave memory, old ones the table as well."""
    at_us = time.time_ns() // 1000
    rows = {
        b"kubernetes\0one": EndedScore(at_us, 40),
        b"kubernetes\0two": EndedScore(at_us, 60),
        b"kubernetes\0old": EndedScore(at_us - 40 * 3600 * 10**6, 60),
        b"foreign\0one": EndedScore(at_us, 10),
    }
    for row, score in rows.items():
        rig.app._rows.data[row] = score.encode()
        partition = 5 if row.startswith(b"foreign") else 3
        await rig.app._learn_partition(SimpleNamespace(key=row, message=SimpleNamespace(partition=partition)))

    rig.app.is_ready = False
    await rig.app._restored()
    await rig.app.settle()

    assert sorted(rig.app._rows.data) == [b"kubernetes\0one", b"kubernetes\0two"]
    assert rig.sent[0] == ("row-3", b"kubernetes\0old", None)
    assert [m["windows"]["24h"]["mean"] for m in rig.published()] == [50]


async def test_a_restore_that_fails_ends_the_process(rig: Rig) -> None:
    """Faust would drop the error, and go on as if there were no rows."""
    rig.app._rows.data[b"kubernetes\0one"] = b"null"
    rig.app._partitions["kubernetes"] = 3

    await rig.app._restored()

    assert isinstance(rig.app._broken.exception(), InsightsBroken)


async def test_what_is_restored_after_chains_were_let_go_is_not_published(rig: Rig) -> None:
    """Restoring ends when it ends; meanwhile somebody else may own the chains."""
    await rig.app._let_go(set())
    await rig.app._restored()
    assert not rig.app.is_ready


async def test_old_rows_leave_the_table(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tombstone each, when their hour is over; a chain without rows is forgotten."""
    await rig.take()
    await rig.app.settle()
    later = time.time() + 39 * 3600
    monkeypatch.setattr(module.time, "time", lambda: later)

    await rig.app.settle()

    assert rig.sent[-1] == ("row-3", b"kubernetes\0one", None)
    assert not rig.app._rows.data
    assert not rig.app._windows


async def test_events_are_passed_on_by_chain(rig: Rig) -> None:
    """As little of them as windows need; what cannot be read is counted, and passed over."""
    await rig.app._group(Record(json.dumps(COMPLETED).encode()))
    await rig.app._group(Record(b"{"))
    await rig.app._group(Record(json.dumps(COMPLETED | {"purpose": "shadow"}).encode()))

    [(name, key, value)] = rig.sent
    assert (name, key) == ("grouped", b"kubernetes")
    assert value.partition(b"\0")[0] == COMPLETED["score_id"].encode()
    assert rig.results() == {"unreadable": 1}


@pytest.mark.parametrize(
    ("chain", "is_passed_on"),
    [
        pytest.param("drift:6c6458ee-fe57-497e-9c5b-a478763178c5", False, id="of-an-event"),
        pytest.param("drift:6c6458ee-fe57-497e-9c5b-a478763178c5\n", True, id="and-more"),
        pytest.param("drift:kubernetes", True, id="of-no-event"),
    ],
)
async def test_no_chain_takes_the_key_of_an_event_of_drift(rig: Rig, chain: str, is_passed_on: bool) -> None:
    """Compaction would keep its windows and drop the event."""
    await rig.app._group(Record(json.dumps(COMPLETED | {"chain_id": chain}).encode()))

    assert [key for _, key, _ in rig.sent] == ([chain.encode()] if is_passed_on else [])
    assert rig.results() == ({} if is_passed_on else {"unreadable": 1})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="tombstone"),
        pytest.param(b"one", id="no-row"),
        pytest.param(b"one\0[1]", id="another-row"),
        pytest.param(b"one\0null", id="null"),
    ],
)
async def test_a_record_by_chain_that_is_none_is_passed_over(rig: Rig, value: Any) -> None:
    """What cannot be read now cannot be read later: it must not end one process after the other."""
    await rig.app._count(Record(value, b"kubernetes"))

    assert rig.sent == []
    assert rig.results() == {"unreadable": 1}


async def test_the_threshold_is_that_of_the_chain(tmp_path: Path) -> None:
    """Its pass threshold, so that the figures and the outcomes agree; else the end of the red band."""
    config = tmp_path / "config.yaml"
    config.write_text("chains: {strict: {pass_threshold: 70}}", "utf-8")
    rig = Rig(tmp_path, SCORING_CONFIG=str(config))
    await rig.take(chain="strict")
    await rig.take(chain="other")
    await rig.app.settle()

    assert {m["chain_id"]: m["windows"]["1h"]["threshold"] for m in rig.published()} == {"strict": 70, "other": 50}


async def test_brokers_that_are_silent_are_not_waited_for_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent is left alone: Faust looks at it when an answer comes after all."""
    monkeypatch.setattr(module, "ACKNOWLEDGE_WITHIN_S", 0.01)
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rig.app._sends.append(sent)

    with pytest.raises(InsightsBroken, match="no answer"):
        await rig.app.settle()

    assert not sent.done()


class StandInApp:
    """A Faust app that runs until it is stopped."""

    crashed = False

    def __init__(self, rig: Rig, fails: Exception | None = None) -> None:
        self.consumer, self.consumer_generation_id = rig.app._app.consumer, 1
        self.is_stopped = False
        self._fails = fails

    async def start(self) -> None:
        return None

    async def wait_until_stopped(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self._fails:
            raise self._fails
        self.is_stopped = True


async def test_a_fault_in_settling_does_not_keep_the_app_running(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads would keep the process from ending, and nobody would start it again."""
    monkeypatch.setattr(module, "PUBLISH_EVERY_S", 0)
    rig.app._app = app = StandInApp(rig)

    async def send(**_: Any) -> Any:
        raise PermissionError("planted")

    cast("Any", rig.app._published).send = send
    await rig.take()

    with pytest.raises(InsightsBroken, match="planted"):
        await rig.app.run(asyncio.Event())

    assert app.is_stopped
    assert not rig.app.is_hanging


async def test_an_app_that_fails_to_stop_is_taken_for_one_that_hangs(rig: Rig) -> None:
    """What it left running keeps the process from ending just as well."""
    rig.app._app = StandInApp(rig, OSError("planted"))
    stopping = asyncio.Event()
    stopping.set()

    await rig.app.run(stopping)

    assert rig.app.is_hanging


@dataclass
class StandIn:
    """An app that ends at once, and cannot be stopped."""

    fault: Exception | None
    is_hanging: bool = True

    async def run(self, _stopping: asyncio.Event) -> None:
        if self.fault:
            raise self.fault


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(InsightsBroken("the brokers are silent"), "the brokers are silent; ", id="broken"),
        pytest.param(None, "it was asked to stop; ", id="asked-to-stop"),
    ],
)
async def test_an_app_that_cannot_be_stopped_does_not_keep_the_process(
    fault: Exception | None, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with 1 and a sentence, so that somebody starts it again: a hang would last."""

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(run_module.os, "_exit", leave)
    with pytest.raises(SystemExit) as left:
        await run_module._run_to_an_end(cast("Any", StandIn(fault)), asyncio.Event())

    assert left.value.code == 1
    assert capsys.readouterr().err.startswith(f"tarsy-scoring: {says}")


async def test_a_look_before_the_app_has_begun_to_fetch_finds_nothing(tmp_path: Path) -> None:
    """Brokers may answer it sooner than the app has started."""
    app = Insights(load_settings(ENV), Metrics(), tmp_path)

    assert app._assigned() == set()


# --- what tells a hang ---------------------------------------------------------------------------------


def test_records_that_are_not_taken_are_told_after_a_while() -> None:
    """With the topic and the partition."""
    watch, places = StuckWatch(100), {("events", 2): Place(5, 0, 9)}

    assert [watch.look(None, places, now_s) for now_s in (0, 99)] == [None, None]
    assert watch.look(None, places, 100) == "records of events, partition 2, are not taken"


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([Place(5, 0, 9), Place(6, 0, 9), Place(7, 0, 9)], id="some-are-taken"),
        pytest.param([Place(9, 0, 9)] * 3, id="all-were-taken"),
        pytest.param([Place(None, 9, 9)] * 3, id="all-were-deleted"),
    ],
)
def test_what_moves_or_has_nothing_to_do_does_not_hang(places: list[Place]) -> None:
    """However long it takes in all."""
    watch = StuckWatch(100)

    assert [watch.look(None, {("events", 2): place}, 90.0 * n) for n, place in enumerate(places)] == [None] * 3


def test_an_app_that_does_not_get_ready_is_told() -> None:
    """Whatever its partitions; time without brokers does not count, nor does time in which rows come back."""
    watch = StuckWatch(100)
    watch.look(0, {}, 0)
    watch.forget()

    assert watch.look(0, {}, 150) is None
    assert watch.look(None, {}, 240) is None
    assert [watch.look(7, {}, now_s) for now_s in (250, 340)] == [None, None]
    assert watch.look(8, {}, 350) is None
    assert [watch.look(8, {}, now_s) for now_s in (449, 450)] == [None, "the app does not get ready"]


# --- settings and command ------------------------------------------------------------------------------


async def test_the_app_is_set_up_as_our_other_clients(tmp_path: Path) -> None:
    """Every broker; a group of its own; nothing is written but to the folder it was given."""
    app = faust_app(load_settings(ENV | {"SCORING_KAFKA_SESSION_TIMEOUT_S": "45"}), tmp_path)

    assert [str(url) for url in app.conf.broker] == ["kafka://one:9092", "kafka://[::1]:9093"]
    assert app.conf.id == "g-insights"
    assert str(app.conf.datadir).startswith(str(tmp_path))
    assert app.conf.broker_session_timeout == 45 <= app.conf.broker_request_timeout


def test_a_password_is_given_as_our_other_clients_do() -> None:
    """In Faust's words."""
    login = {
        "SCORING_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SCORING_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "SCORING_KAFKA_SASL_USERNAME": "me",
        "SCORING_KAFKA_SASL_PASSWORD": "planted",
    }
    given = credentials(load_settings(ENV | login))

    assert isinstance(given, SASLCredentials)
    assert (given.username, given.password) == ("me", "planted")
    assert (given.mechanism.value, given.protocol.value) == ("SCRAM-SHA-512", "SASL_PLAINTEXT")
    assert "planted" not in repr(given)


def test_a_token_is_read_whenever_it_is_needed(tmp_path: Path) -> None:
    """The file and not what it held at start."""
    login = {
        "SCORING_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SCORING_KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        "SCORING_KAFKA_OAUTH_TOKEN_FILE": str(tmp_path / "token"),
    }
    given = credentials(load_settings(ENV | login))

    assert isinstance(given, OAuthCredentials)
    assert given.protocol.value == "SASL_SSL"
    assert given.ssl_context is not None
    assert credentials(load_settings(ENV)) is None


def test_topics_are_named_after_the_group() -> None:
    """So that two installations on one cluster do not meet; those of which only the newest message counts are told."""
    assert topics_of_insights(load_settings(ENV)) == (
        ["scoring-events", "g-insights-by-chain"],
        ["g-insights-scores-changelog", "scoring-insights"],
    )


@pytest.mark.parametrize(
    ("env", "says"),
    [
        pytest.param({"SCORING_KAFKA_BOOTSTRAP_SERVERS": ""}, "BOOTSTRAP_SERVERS is not set", id="no-broker"),
        pytest.param(ENV, "pip install 'tarsy-scoring[insights]'", id="not-installed"),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is opened, and as something to be mended by whoever asked."""
    monkeypatch.setitem(sys.modules, "faust", None)

    told = CliRunner().invoke(command, [], env=env)

    assert isinstance(told.exception, ConfigurationError)
    assert says in str(told.exception)
