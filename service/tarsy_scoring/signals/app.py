"""
Scoring events to rolling figures: scores that end are counted in windows per chain, and the windows are published.

A Faust app: events are grouped by chain, and a table with a changelog topic holds one row per score, which never
changes. Windows are sums over these rows and are kept in memory only. Laws. A record's offset is committed after what
follows from it was acknowledged by the brokers: the grouped record, the row, the windows. So a process may be killed
at any moment; what comes twice is a row that is there, and has its windows published once more. Nothing is read,
changed and written back, so that two processes that believe they own a chain do each other no harm.
"""

import asyncio
import contextlib
import functools
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from faust.exceptions import ConsumerNotStarted
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.kafka.clients import BrokerAway
from tarsy_scoring.kafka.topics import first_offset, read_places
from tarsy_scoring.signals.faust_app import ACKNOWLEDGE_WITHIN_S, TABLE, StuckWatch, app_id, faust_app, grouped_topic
from tarsy_scoring.signals.windows import MICRO, EndedScore, RollingWindows, kept_from, microseconds, read_ended
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

PUBLISH_EVERY_S = 1.0
MOST_UNSETTLED = 2_000  # records that are taken in before what follows from them is acknowledged
STOP_WITHIN_S = 10.0
TICK_S = 0.5
LOOK_EVERY_S = 5.0
STUCK_SESSIONS = 4  # session timeouts without a move: members are missed after one, and joining anew takes another
EARLIEST_AHEAD_S = 3600
RED_BAND_ENDS = 50.0  # totals below it are red on the pages; the threshold where a chain has none
# Keys of `scoring.drift_detected` in the same compacted topic: a chain of such a name would take the event away.
DRIFT_KEY = re.compile(r"drift:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SEPARATOR = b"\0"  # neither chains nor ids hold it: NUL is refused at the door


class InsightsBroken(ScoringError):
    """The app cannot go on; nothing is lost, and whoever starts it again goes on where it stood."""


def chain_of(row: bytes) -> str:
    """The chain of a row: rows are named by chain and score."""
    return row.partition(SEPARATOR)[0].decode()


class Insights:
    """
    The app of this process. Faust divides chains among all that run.

    Args:
        directory: Where Faust may write; nothing in it is needed afterwards.
    """

    def __init__(self, settings: Settings, metrics: Metrics, directory: Path) -> None:
        self._settings = settings
        self._metrics = metrics
        self._windows: dict[str, RollingWindows] = {}
        self._partitions: dict[str, int] = {}
        self._unsettled: list[Any] = []
        self._next: dict[Any, int] = {}
        self._sends: list[asyncio.Future[Any]] = []
        self._newest_us: list[int] = []
        self._settling = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._ticked = time.monotonic()
        self._kept_from_s = kept_from(time.time())
        self._is_assigned = False
        self.is_ready = False
        """Whether rows are restored and events are taken in; False between two assignments."""
        self.is_hanging = False
        """Whether the app could not be stopped: what it left behind keeps the process from ending by itself."""
        self._app = faust_app(settings, directory)
        plain: dict[str, Any] = {"key_type": bytes, "value_type": bytes, "acks": False}
        self._events = self._app.topic(settings.topic_scoring_events, **plain)
        self._grouped = self._app.topic(grouped_topic(settings), **plain)
        self._published = self._app.topic(settings.topic_scoring_insights, **plain)
        self._rows = self._app.Table(
            TABLE,
            key_type=bytes,
            value_type=bytes,
            partitions=self._app.conf.topic_partitions,
            on_changelog_event=self._learn_partition,
        )
        self._rows.on_recover(self._restored)
        self._app.agent(self._events, name="group", concurrency=1)(self._watched(self._group))
        self._app.agent(self._grouped, name="count", concurrency=1)(self._watched(self._count))
        self._app.on_partitions_revoked.connect(self._let_go, weak=False)
        self._app.on_partitions_assigned.connect(self._take_over, weak=False)

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Count and publish until `stopping`.

        Raises:
            InsightsBroken: It cannot go on; whoever supervises the process starts it again.
        """
        loops = (self._run_app(), self._keep_publishing(), self._tick(), self._watch(), stopping.wait())
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(loop) for loop in loops]
        threading.excepthook = self._break_for_thread
        try:
            done, _ = await asyncio.wait([*tasks, self._broken], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.is_set():
                for ended in (self._broken, *tasks):
                    if ended in done:
                        ended.result()
        finally:
            self.is_hanging = True
            ending = asyncio.create_task(self._stop(tasks))
            # Not a timeout, which cancels: what is stopped here does not always let itself be cancelled.
            await asyncio.wait({ending}, timeout=STOP_WITHIN_S)
            # Who failed to stop left running what keeps the process from ending, too.
            self.is_hanging = not ending.done() or ending.cancelled() or ending.exception() is not None

    async def _run_app(self) -> None:
        try:
            await self._app.start()
            await self._app.wait_until_stopped()
        except Exception as error:
            raise InsightsBroken(f"the stream app cannot be started: {error!r}") from error
        raise InsightsBroken(f"the stream app has stopped by itself: {self._app.crash_reason!r}")

    async def _stop(self, tasks: list[asyncio.Future[Any]]) -> None:
        """Settle what can be settled at once, and leave the group; what remains comes again."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if not self._app.crashed:
                with contextlib.suppress(InsightsBroken):
                    await self.settle()
        finally:
            await self._app.stop()

    def _break_for_thread(self, died: threading.ExceptHookArgs) -> None:
        """Faust fetches in a thread of its own; nobody else looks after it."""
        error = InsightsBroken(f"a thread of the stream app has died: {died.exc_value!r}")
        self._loop.call_soon_threadsafe(self._break, error)

    def _break(self, error: BaseException) -> None:
        """Let `run` end with this."""
        if self._broken.done():
            return
        if not isinstance(error, InsightsBroken):
            broken = InsightsBroken(f"scores cannot be counted: {error!r}")
            broken.__cause__ = error
            error = broken
        self._broken.set_exception(error)
        self._broken.exception()  # seen: whoever is stopped anyway does not complain of it

    # --- events in -------------------------------------------------------------------------------------

    def _watched(self, take: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """
        An agent over `take` whose faults end the process.

        Faust has no say in what is committed: it would commit the record of an agent that failed, and also records
        that it skips because chains are being divided anew.
        """

        @functools.wraps(take)
        async def agent(stream: Any) -> None:
            try:
                async for event in stream.events():
                    await self._require_unbroken(event.message)
                    if self._is_ours(event.message):
                        await take(event)
                    if self._is_ours(event.message):  # still: chains may have been divided anew meanwhile
                        self._unsettled.append(event.message)
                        self._next[event.message.tp] = event.message.offset + 1
                    if len(self._unsettled) >= MOST_UNSETTLED:
                        await self.settle()
            except Exception as error:
                self._break(error)
                raise

        return agent

    async def _require_unbroken(self, record: Any) -> None:
        """
        See that no record was left out: Faust now and then skips one when it begins to fetch after restoring.

        Raises:
            InsightsBroken: Some were; none behind them is committed, so whoever starts next takes them.
        """
        expected = self._next.get(record.tp)
        if expected is None:
            expected = self._app.consumer._committed_offset[record.tp] or 0
        if record.offset > expected:
            # Offsets may have holes: where retention removed records, and at the marks of transactions.
            first = await first_offset(self._settings, record.topic, record.partition, expected)
            if first is None or first < record.offset:
                raise InsightsBroken(
                    f"records from {first} to {record.offset - 1} of {record.topic}, partition {record.partition}, "
                    "were left out"
                )

    def _is_ours(self, record: Any) -> bool:
        """Whether it came with the assignment that holds; else it comes again, here or elsewhere."""
        return bool(self._is_assigned and record.generation_id == self._app.consumer_generation_id)

    async def _group(self, event: Any) -> None:
        """Pass on what counts, by chain."""
        try:
            ended = read_ended(event.value or b"")
            if ended is not None and DRIFT_KEY.fullmatch(ended[0]):
                raise ValueError("a chain whose windows would stand under the key of an event of drift")
        except ValueError:
            self._metrics.insights_events.labels("unreadable").inc()
            return
        if ended is not None:
            chain, score_id, figures = ended
            value = score_id.encode() + SEPARATOR + figures.encode()
            self._sends.append(await self._grouped.send(key=chain.encode(), value=value))

    async def _count(self, event: Any) -> None:
        """Count a score where its row is new, and have its windows published in any case."""
        key, (name, _, encoded) = event.key or b"", (event.value or b"").partition(SEPARATOR)
        try:
            ended, chain = EndedScore.decode(encoded), key.decode()
        except (ValueError, TypeError):
            self._metrics.insights_events.labels("unreadable").inc()
            return
        row = key + SEPARATOR + name
        if (result := self._refuse(ended)) is None:
            windows = self._windows.get(chain)
            if windows is None:
                windows = self._windows[chain] = RollingWindows(self._threshold(chain))
                self._partitions[chain] = event.message.partition
            if row in self._rows.data:
                result = "repeat"
            else:
                result = "counted"
                self._rows.data[row] = encoded
                self._sends.append(self._rows.send_changelog(event.message.partition, row, encoded))
                windows.count(row, ended)
            windows.touch(ended.at_us)
            self._newest_us.append(ended.at_us)
        self._metrics.insights_events.labels(result).inc()

    def _refuse(self, ended: EndedScore) -> str | None:
        """Why a score is in no window; None: it is in some."""
        if ended.at_us // MICRO < self._kept_from_s:
            return "late"
        return "early" if ended.at_us // MICRO > time.time() + EARLIEST_AHEAD_S else None

    def _threshold(self, chain: str) -> float:
        configured = self._settings.chain(chain or None).pass_threshold
        return RED_BAND_ENDS if configured is None else configured

    # --- windows out -----------------------------------------------------------------------------------

    async def _keep_publishing(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_EVERY_S)
            await self.settle()

    async def settle(self) -> None:
        """
        Publish windows that changed, wait for the brokers' acknowledgements, and commit offsets.

        Where that fails or is cut off, nothing is settled any more, and the process ends: what came later must not be
        committed over what this one took and did not see kept.

        Raises:
            InsightsBroken: The brokers did not acknowledge in time.
        """
        async with self._settling:
            if not self.is_ready or self._broken.done():
                return
            try:
                await self._settle()
            except BaseException as error:
                self._break(error)
                raise

    async def _settle(self) -> None:
        self._require_no_pause()
        self._forget_old()
        # In the order of their offsets; the last of a partition stands.
        offsets = {m.tp: m.offset + 1 for m in self._unsettled}
        self._unsettled.clear()
        sends, self._sends = self._sends, []
        ended_us, self._newest_us = self._newest_us, []
        published = 0
        for chain, windows in list(self._windows.items()):
            for message in windows.take_unpublished(self._kept_from_s):
                sends.append(await self._publish(chain, message))
                published += 1
            await asyncio.sleep(0)
        await self._acknowledged(sends)
        if offsets:
            await self._acknowledged([asyncio.ensure_future(self._app.consumer._commit(offsets))])
        self._metrics.insights_published.inc(published)
        for at_us in ended_us:
            self._metrics.insights_delay.observe(max(0.0, time.time() - at_us / MICRO))
        self._metrics.insights_chains.set(len(self._windows))
        self._metrics.insights_rows.set(len(self._rows.data))

    async def _publish(self, chain: str, windows: dict[str, Any]) -> "asyncio.Future[Any]":
        now = datetime.now(UTC)
        message = {
            "type": "scoring.windows",
            "chain_id": chain or None,
            "timestamp": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "timestamp_us": microseconds(now),
            "windows": windows,
        }
        sent: asyncio.Future[Any] = await self._published.send(key=chain.encode(), value=to_json(message))
        return sent

    async def _acknowledged(self, sends: Collection["asyncio.Future[Any]"]) -> None:
        if not sends:
            return
        # Not a timeout, which would cancel them: Faust fails loudly over each that it finds cancelled.
        done, waiting = await asyncio.wait(sends, timeout=ACKNOWLEDGE_WITHIN_S)
        failed = [f.exception() for f in done if f.exception() is not None]
        if failed or waiting:
            why = repr(failed[0]) if failed else f"no answer within {ACKNOWLEDGE_WITHIN_S:.0f} s"
            raise InsightsBroken(f"the brokers did not acknowledge what was sent: {why}")

    def _forget_old(self) -> None:
        """Take rows out of the table that no window needs any more."""
        kept_from_s = kept_from(time.time())
        if kept_from_s <= self._kept_from_s:
            return
        self._kept_from_s = kept_from_s
        for chain, windows in list(self._windows.items()):
            for row in windows.forget(kept_from_s):
                del self._rows.data[row]
                self._sends.append(self._rows.send_changelog(self._partitions[chain], row, None))
            if not windows:
                del self._windows[chain]

    # --- assignments -----------------------------------------------------------------------------------

    async def _let_go(self, *_: Any, **__: Any) -> None:
        """
        Before chains go to other processes: see that what was sent has arrived, and forget what is unsettled.

        The records of it come again, here or elsewhere. A row in memory that is not in the changelog would be taken
        for a repeat then, so where that is not certain the process ends.
        """
        self.is_ready = self._is_assigned = False
        async with self._settling:
            sends, self._sends = self._sends, []
            try:
                await self._acknowledged(sends)
            except InsightsBroken as error:
                self._break(error)
            self._unsettled.clear()
            self._next.clear()
            self._newest_us.clear()
            self._windows.clear()

    async def _take_over(self, *_: Any, **__: Any) -> None:
        self._is_assigned = True

    async def _learn_partition(self, event: Any) -> None:
        """Faust tells it of each restored row, and of none afterwards."""
        self._partitions[chain_of(event.key)] = event.message.partition

    async def _restored(self) -> None:
        """What Faust calls; it drops the errors of whatever it calls here."""
        try:
            if self._is_assigned:  # else what was restored is of an assignment that is over; another one follows
                self._restore()
        except Exception as error:  # noqa: BLE001 - whatever it is, Faust would go on as if all were restored
            self._break(error)

    def _restore(self) -> None:
        """Sum up anew the rows of the chains that are ours now, in one go, and have their newest windows published."""
        mine = {p.partition for p in self._app.consumer.assignment() if p.topic == grouped_topic(self._settings)}
        self._windows.clear()
        self._kept_from_s = kept_from(time.time())
        for row, encoded in list(self._rows.data.items()):
            chain, ended = chain_of(row), EndedScore.decode(encoded)
            if self._partitions[chain] not in mine:
                del self._rows.data[row]
            elif ended.at_us // MICRO < self._kept_from_s:
                del self._rows.data[row]
                self._sends.append(self._rows.send_changelog(self._partitions[chain], row, None))
            else:
                if chain not in self._windows:
                    self._windows[chain] = RollingWindows(self._threshold(chain))
                self._windows[chain].count(row, ended)
        for windows in self._windows.values():
            windows.touch_newest()
        self.is_ready = True
        log.info("insights.ready", partitions=sorted(mine), chains=len(self._windows), rows=len(self._rows.data))

    # --- watching --------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._require_no_pause()
            self._ticked = time.monotonic()
            await asyncio.sleep(TICK_S)

    def _require_no_pause(self) -> None:
        """Whoever stood still for a session timeout has lost its chains, and must not publish what it has of them."""
        paused_s = time.monotonic() - self._ticked
        if paused_s > self._settings.kafka_session_timeout_s:
            raise InsightsBroken(
                f"this process stood still for {paused_s:.0f} s, and others have taken its chains over"
            )

    async def _watch(self) -> None:
        """End the process where the app hangs: brokers answer, records wait, and nothing moves."""
        patience_s = STUCK_SESSIONS * self._settings.kafka_session_timeout_s
        stuck = StuckWatch(patience_s)
        topics = [self._settings.topic_scoring_events, grouped_topic(self._settings)]
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                places = await read_places(self._settings, app_id(self._settings), topics)
            except BrokerAway as error:
                log.warning("insights.waiting", reason=str(error))
                self._metrics.kafka_up.labels("insights").set(0)
                stuck.forget()
                continue
            self._metrics.kafka_up.labels("insights").set(1)
            mine = {p: place for p, place in places.items() if p in self._assigned()}
            self._metrics.consumer_lag.set(sum(place.behind for place in mine.values()))
            restored = None if self.is_ready else len(self._rows.data)
            if what := stuck.look(restored, mine, time.monotonic()):
                raise InsightsBroken(f"{what} for {patience_s:.0f} s while the brokers answer")

    def _assigned(self) -> set[tuple[str, int]]:
        try:
            return {(p.topic, p.partition) for p in self._app.consumer.assignment()}
        except ConsumerNotStarted:  # the app is starting: brokers may have answered us sooner
            return set()
