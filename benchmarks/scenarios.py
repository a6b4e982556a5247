"""Measures a scenario: the bare client, the service or upstream's server, on the same sessions and judge."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg

from benchmarks.activity import Activity, read_activity
from benchmarks.bare_client import NONCE
from benchmarks.meter import Meter, Window, metered, steady_window, whole_window
from benchmarks.peer import TEMPLATE, Peer, post_scores
from benchmarks.programs import Judge, ProgramFailed, judge, program, require_running
from benchmarks.sessions import ALERT_TYPE, BODIES, session_name
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.backlog import UNPUBLISHED_EVENTS
from tarsy_scoring.retention.erasure import forget_sessions
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring.timeline.render.context import build_context
from tarsy_scoring_lab.postgres import EmbeddedPostgres, create_database
from tarsy_scoring_lab.scripted_judge import MODEL
from tarsy_scoring_lab.stack import Stack

TURNS = 2
POLL_S = 0.5
STALL_S = 30.0
PUBLISH_TIMEOUT_S = 60.0
_FAKE_NONCE = "0123456789abcdef" * 2

Progress = Callable[[int], None]
"""Called with the number of finished scores."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    A measurement: a program and its load.

    Args:
        kind: The program: `bare`, `service` or `peer`.
        latency_s: Latency of the judge per turn.
        slots: Number of scores that are worked on at once.
        scores: Number of scores in all.
        is_stored: The worker's database is that of a filled directory, in place of an empty one.
    """

    name: str
    kind: str
    latency_s: float
    slots: int
    scores: int
    is_stored: bool = False

    @property
    def load(self) -> tuple[float, int]:
        return self.latency_s, self.slots

    @property
    def limit_s(self) -> float:
        """Time limit of the measurement in seconds."""
        return 120 + 5 * self.scores / min(self.slots / (TURNS * self.latency_s), 50.0)


@dataclass(frozen=True, slots=True)
class Result:
    """
    One measured scenario. CPU in seconds, memory in bytes, rates in scores per second.

    `own` and `tarsy` are the counts of the two databases per score, with the start of the process and two
    looks of the benchmark per second; None without a database.

    `whole` reaches from the first claim to the last completion; `steady` leaves out ramp and tail. `cpu_s`
    and `others_cpu_s` are CPU per completed score over the whole run, including intake and publishing,
    without the start of the process.
    """

    scenario: Scenario
    completed: int
    whole: Window
    steady: Window | None
    cpu_s: float
    peak_rss: int
    judge_calls: int
    others_cpu_s: Mapping[str, float]
    bystanders_share: float
    own: Activity | None = None
    tarsy: Activity | None = None

    @property
    def rate(self) -> float:
        """Scores per second of the steady window, or of the whole one if there is none."""
        return (self.steady or self.whole).rate

    @property
    def all_cpu_s(self) -> float:
        """CPU of the program, its database and its broker, without the judge."""
        return self.cpu_s + sum(used for name, used in self.others_cpu_s.items() if name != "judge")


@dataclass(frozen=True, slots=True)
class Bench:
    """
    Parts that all scenarios share.

    Args:
        stack: Its database `scoring` is migrated and is the template of each scenario's database.
        folder: Directory of logs and conversations.
        peer: TARSy's own programs, with the database `TEMPLATE` created; None: scenarios of the peer are not measured.
        stored: A server that `benchmarks.stored` has filled; None: scenarios over it are not measured.
    """

    stack: Stack
    folder: Path
    peer: Peer | None = None
    stored: EmbeddedPostgres | None = None

    async def measure(self, scenario: Scenario, progress: Progress) -> Result:
        """
        Run one scenario.

        Args:
            progress: Called with the number of finished scores.

        Raises:
            ProgramFailed: The measured program ended early, failed scores, or made no progress.
            TimeoutError: It took longer than the limit of the scenario.
        """
        if scenario.kind == "peer":
            async with asyncio.timeout(scenario.limit_s):
                return await self._measure_peer(scenario, progress)
        async with AsyncExitStack() as stack:
            of_peer = self.peer and self.peer.model
            asked = await stack.enter_async_context(judge(scenario.latency_s, self.folder, of_peer))
            async with asyncio.timeout(scenario.limit_s):
                if scenario.kind == "bare":
                    return await self._measure_bare(scenario, asked, progress)
                return await self._measure_service(scenario, asked, progress)

    # --- the bare client -------------------------------------------------------------------------------

    async def write_conversations(self) -> None:
        """Write the conversations that the service would have about the different sessions."""
        criteria = load_criteria().get("investigation-methodology")
        conversations = []
        database = TarsyDatabase(self._tarsy_url)
        try:
            for session_id in map(session_name, range(BODIES)):
                context = build_context(await database.fetch_timeline(session_id), _FAKE_NONCE, 100_000)
                system, prompt = (m.content for m in criteria.open_conversation(context))
                conversations.append([system, prompt.replace(_FAKE_NONCE, NONCE), criteria.follow_up_prompt])
        finally:
            await database.close()
        self._conversations.write_text(json.dumps(conversations), encoding="utf-8")

    @property
    def _conversations(self) -> Path:
        return self.folder / "conversations.json"

    @property
    def _tarsy_url(self) -> str:
        return self.stack.env["SCORING_TIMELINE_DATABASE_URL"]

    async def _measure_bare(self, scenario: Scenario, asked: Judge, progress: Progress) -> Result:
        log_file = self.folder / "bare.log"
        options = {
            "--base-url": asked.base_url,
            "--model": MODEL,
            "--conversations": str(self._conversations),
            "--slots": str(scenario.slots),
            "--scores": str(scenario.scores),
        }
        arguments = ["-m", "benchmarks.bare_client", *(part for pair in options.items() for part in pair)]
        async with (
            program(*arguments, env={}, log_file=log_file) as process,
            metered({"measured": process.pid, "judge": asked.pid, "driver": os.getpid()}) as meter,
        ):
            assert process.stdout is not None
            output = asyncio.create_task(process.stdout.read())
            while not output.done():
                await asyncio.wait([output], timeout=POLL_S)
                progress(await asked.calls() // TURNS)
        if process.returncode:
            require_running(process, log_file)
        printed = json.loads(await output)
        calls = scenario.scores * TURNS  # it makes exactly these calls, or ends with an error
        return _result(scenario, printed["started"], printed["started"], printed["completions"], meter, calls)

    # --- upstream's server -----------------------------------------------------------------------------

    async def _measure_peer(self, scenario: Scenario, progress: Progress) -> Result:
        assert self.peer is not None
        database = f"{scenario.name}-{time.time_ns() // 10**6}"
        url = await create_database(self.stack.postgres.url, database, template=TEMPLATE)
        async with AsyncExitStack() as stack:
            address, model_pid = await stack.enter_async_context(
                self.peer.model_service(scenario.latency_s, self.folder)
            )
            connection = await asyncpg.connect(url, timeout=10)
            stack.push_async_callback(connection.close)
            before = await read_activity(connection)
            async with self.peer.running(url, address, self.folder) as (process, log_file, base_url):
                pids = {
                    "measured": process.pid,
                    "judge": model_pid,
                    "database": self.stack.postgres.pid,
                    "driver": os.getpid(),
                }
                async with metered(pids) as meter:
                    started = time.time()
                    await post_scores(base_url, [session_name(n) for n in range(scenario.scores)])
                    await _follow(scenario, process, log_file, lambda: _count_peer(connection), progress)
            after = await read_activity(connection)
            completions = await connection.fetchval(_PEER_COMPLETIONS)
        result = _result(scenario, started, started, completions, meter, scenario.scores * TURNS)
        return replace(result, own=after.since(before, result.completed))

    # --- the service -----------------------------------------------------------------------------------

    async def _measure_service(self, scenario: Scenario, asked: Judge, progress: Progress) -> Result:
        env = await self.environment(scenario, asked)
        await self.announce(env, scenario.scores)
        log_file = self.folder / f"{scenario.name}.log"
        connection = await asyncpg.connect(env["SCORING_DATABASE_URL"], timeout=10)
        names = [session_name(n) for n in range(scenario.scores)]
        tarsy = await asyncpg.connect(self._tarsy_url, timeout=10)
        try:
            before = [await read_activity(c) for c in (connection, tarsy)]
            async with program("-m", "tarsy_scoring", "worker", env=env, log_file=log_file) as process:
                pids = {
                    "measured": process.pid,
                    "judge": asked.pid,
                    "database": (self.stored if self.stored and scenario.is_stored else self.stack.postgres).pid,
                    "broker": self.stack.kafka.pid,
                    "driver": os.getpid(),
                }
                async with metered(pids) as meter:
                    await _follow(scenario, process, log_file, lambda: _count_service(names, connection), progress)
            after = [await read_activity(c) for c in (connection, tarsy)]
            since, first_claim, completions = await _read_service(names, connection)
        finally:
            await tarsy.close()
            await connection.close()
        result = _result(scenario, since, first_claim, completions, meter, await asked.calls())
        own, of_tarsy = (a.since(b, result.completed) for a, b in zip(after, before, strict=True))
        return replace(result, own=own, tarsy=of_tarsy)

    async def environment(self, scenario: Scenario, asked: Judge) -> dict[str, str]:
        """Create a database for a scenario; returns its settings, with its own topics and consumer group."""
        prefix = f"{scenario.name}-{time.time_ns() // 10**6}"
        if scenario.is_stored:
            assert self.stored is not None
            await forget_former_run(database := self.stored.url, scenario.scores)
        else:
            database = await create_database(self.stack.postgres.url, prefix, template="scoring")
        return self.stack.env | {
            "SCORING_DATABASE_URL": database,
            "SCORING_TIMELINE_SOURCE": "tarsy-db",
            "SCORING_SLOTS": str(scenario.slots),
            "SCORING_METRICS_PORT": "0",
            "SCORING_LOG_FORMAT": "json",
            "SCORING_KAFKA_GROUP": prefix,
            "SCORING_TOPIC_SESSION_COMPLETED": f"{prefix}-session-completed",
            "SCORING_TOPIC_RESCORE_REQUESTED": f"{prefix}-rescore-requested",
            "SCORING_TOPIC_SCORING_EVENTS": f"{prefix}-scoring-events",
            "SCORING_TOPIC_DEAD_LETTERS": f"{prefix}-dead-letters",
            "OPENAI_BASE_URL": asked.base_url,
        }

    async def announce(self, env: Mapping[str, str], scores: int) -> None:
        """Publish the events of ended sessions. Raises: ProgramFailed: the broker did not take them."""
        settings = load_settings(env)
        await ensure_topics(settings, [settings.topic_session_completed, settings.topic_scoring_events])
        messages = []
        for session_id in map(session_name, range(scores)):
            event = {"session_id": session_id, "chain_id": "kubernetes", "alert_type": ALERT_TYPE}
            messages.append((session_id.encode(), json.dumps(event).encode(), ()))
        publisher = Publisher(settings)
        try:
            if not all(await publisher.publish(settings.topic_session_completed, messages, PUBLISH_TIMEOUT_S)):
                raise ProgramFailed("the broker did not take the requests")
        finally:
            await publisher.stop()


@dataclass(frozen=True, slots=True)
class _Count:
    completed: int
    failed: int = 0
    unpublished: int = 0


async def forget_former_run(url: str, scores: int) -> None:
    """Delete what an earlier scenario stored about the benchmark's sessions."""
    database = Database(url, "public", pool_size=1)
    await database.open()
    try:
        names = [session_name(n) for n in range(scores)]
        await database.once(lambda c: forget_sessions(database, c, names))
    finally:
        await database.close()


async def _count_service(names: Sequence[str], connection: asyncpg.Connection) -> _Count:
    row = await connection.fetchrow(
        "SELECT count(*) FILTER (WHERE status = 'completed'), "
        "count(*) FILTER (WHERE status NOT IN ('completed', 'pending', 'in_progress')), "
        f"(SELECT events FROM ({UNPUBLISHED_EVENTS}) e) FROM session_scores "
        "WHERE session_id = ANY($1)".format(schema="public"),
        names,
    )
    assert row is not None
    return _Count(*row)


async def _count_peer(connection: asyncpg.Connection) -> _Count:
    row = await connection.fetchrow(
        "SELECT count(*) FILTER (WHERE status = 'completed'), "
        "count(*) FILTER (WHERE status NOT IN ('completed', 'pending', 'in_progress')) FROM session_scores"
    )
    assert row is not None
    return _Count(*row)


_PEER_COMPLETIONS = (
    "SELECT array_agg(extract(epoch FROM completed_at)::float8) FROM session_scores WHERE status = 'completed'"
)


async def _read_service(names: Sequence[str], connection: asyncpg.Connection) -> tuple[float, float, list[float]]:
    """Unix times of the first stored request, of the first claim, and of all completions."""
    row = await connection.fetchrow(
        "SELECT extract(epoch FROM "
        "(SELECT min(received_at) FROM scoring_requests WHERE session_id = ANY($1)))::float8, "
        "extract(epoch FROM min(started_at))::float8, array_agg(extract(epoch FROM completed_at)::float8) "
        "FROM session_scores WHERE status = 'completed' AND session_id = ANY($1)",
        names,
    )
    assert row is not None
    return row[0], row[1], row[2]


async def _follow(
    scenario: Scenario,
    process: asyncio.subprocess.Process,
    log_file: Path,
    count: Callable[[], Awaitable[_Count]],
    progress: Progress,
) -> None:
    """
    Wait until all sessions are scored and all events are published.

    Raises:
        ProgramFailed: The program ended, failed scores, or made no progress for `STALL_S` and two turns.
    """
    last, moved_at = _Count(0), time.monotonic()
    while True:
        now = await count()
        if now != last:
            last, moved_at = now, time.monotonic()
        progress(now.completed)
        if now.failed:
            raise ProgramFailed(f"{now.failed} scores failed; see {log_file.name}")
        if now.completed >= scenario.scores and not now.unpublished:
            return
        require_running(process, log_file)
        if time.monotonic() - moved_at > STALL_S + TURNS * scenario.latency_s:
            raise ProgramFailed(f"no progress: {now.completed} of {scenario.scores} after {STALL_S:g} s of silence")
        await asyncio.sleep(POLL_S)


def _result(
    scenario: Scenario, since: float, first_claim: float, completions: Sequence[float], meter: Meter, calls: int
) -> Result:
    whole = whole_window(first_claim, completions)
    steady = steady_window(completions, scenario.slots)
    until = max(whole.until, meter.times[-1]) if scenario.kind != "bare" else whole.until
    beside = meter.pids.keys() - {"measured", "driver"}
    return Result(
        scenario=scenario,
        completed=len(completions),
        whole=whole,
        steady=steady,
        cpu_s=meter.used_s("measured", since, until) / len(completions),
        peak_rss=meter.peak_rss,
        judge_calls=calls,
        others_cpu_s={name: meter.used_s(name, since, until) / len(completions) for name in sorted(beside)},
        bystanders_share=meter.bystanders_share(since, whole.until),
    )
