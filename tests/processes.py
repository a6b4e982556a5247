"""
Runs the service as real processes: start, watch, pause, stop and kill them, then check what they left.

Sessions are small files, the judge is the scripted one in the test's own process, everything else is real.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import counted_again
from builders import UNPUBLISHED
from infrastructure import Topics, wait_until
from tarsy_scoring_lab.scripted_judge import MODEL, Fault, ScriptedJudge

SMALL_SESSION = Path(__file__).with_name("small_session.json").read_text(encoding="utf-8")
DYING_WORKER = Path(__file__).parent / "chaos" / "dying_worker.py"
LARGEST_MESSAGE = 20 * 2**20
TAIL_CHARACTERS = 4_000
# Far longer than any wait takes, so that a slow machine fails no test: on a busy machine the start of one process
# may take more than ten seconds.
PATIENCE_S = 60.0
ANSWER_S = 30.0  # for one answer of a server
HOLD_S = 0.05  # how often a held call checks whether it is still held
TERMINAL = ("scoring.completed", "scoring.failed")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.stdout)


class Process:
    """A process of the service; its output goes to files."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, name: str) -> None:
        self.name = name
        self._out, self._log = folder / f"{name}.out", folder / f"{name}.log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Exit status; the negative signal if one ended it; None while it runs."""
        return self._popen.poll()

    @property
    def log(self) -> str:
        """Everything on standard error so far."""
        return self._log.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return self._out.read_text(errors="replace")

    def lines(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The structured log lines so far, those of one event if named, with these fields."""
        found = []
        for text in self.log.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and (event is None or line.get("event") == event):
                found.append(line)
        return [line for line in found if all(line.get(k) == v for k, v in fields.items())]

    async def says(self, event: str, timeout_s: float = PATIENCE_S, **fields: Any) -> dict[str, Any]:
        """Wait for a log line; gives the first."""

        def matching_lines() -> list[dict[str, Any]]:
            status = self.status  # read first: all it logged before its end is in the file by then
            found = self.lines(event, **fields)
            assert found or status is None, f"{self.name} ended with {status} before it said {event}"
            return found

        lines: list[dict[str, Any]] = await wait_until(matching_lines, timeout_s, f"{self.name} says {event} {fields}")
        return lines[0]

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of its own HTTP server."""
        port = (await self.says("service.starting"))["metrics_port"]
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        """Whether `/readyz` answers 200; a process that gives no answer is not ready."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            return (await self.get("/readyz"))[0] == 200
        return False

    async def ready(self, timeout_s: float = PATIENCE_S) -> None:
        async def says_so() -> bool:
            assert self.status is None, f"{self.name} ended with {self.status} before it was ready"
            return await self.is_ready()

        await wait_until(says_so, timeout_s, f"{self.name} is ready")

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; gives the exit status."""
        await wait_until(lambda: self.status is not None, timeout_s, f"{self.name} ends")
        assert self.status is not None
        return self.status

    async def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, as an orchestrator stops it; gives the exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended(timeout_s)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        await self.ended()


@dataclass(frozen=True)
class Seen:
    """A scoring event as it stands on the topic."""

    partition: int
    key: bytes
    payload: dict[str, Any]
    headers: dict[str, bytes]
    value: bytes


class Service:
    """One installation: a database, topics, a judge, a folder of sessions, and the processes of a test."""

    def __init__(self, folder: Path, database_url: str, topics: Topics, judge: ScriptedJudge) -> None:
        self.folder = folder
        self.sessions = folder / "sessions"
        self.sessions.mkdir()
        self.database_url = database_url
        self.topics = topics
        self.judge = judge
        self.processes: list[Process] = []
        self.env = topics.env | {
            "SCORING_DATABASE_URL": database_url,
            "SCORING_TIMELINE_SOURCE": "files",
            "SCORING_TIMELINE_DIR": str(self.sessions),
            "OPENAI_BASE_URL": judge.base_url,
            "OPENAI_API_KEY": "sk-planted-judge-key",
            "SCORING_JUDGE_MODEL": MODEL,
            # Long enough that no lease expires while the machine stalls for some seconds; chaos tests set short ones.
            "SCORING_LEASE_S": "30",
            "SCORING_KAFKA_SESSION_TIMEOUT_S": "30",
            "SCORING_DRAIN_TIMEOUT_S": "30",
            "SCORING_METRICS_PORT": "0",
            "SCORING_LOG_FORMAT": "json",
        }
        self._producer: AIOKafkaProducer | None = None
        self._connection: asyncpg.Connection | None = None

    # --- processes -------------------------------------------------------------------------------------

    def worker(self, *options: str, dies_at: str | None = None, **env: str) -> Process:
        """
        Start a worker.

        Args:
            dies_at: A point of `dying_worker.py`.
            env: On top of the service's own; an empty value counts as not set.
        """
        program = [str(DYING_WORKER), dies_at] if dies_at else ["-m", "tarsy_scoring", "worker"]
        return self._start([*program, *options], env, "worker")

    def command(self, *arguments: str, **env: str) -> Process:
        """Start a command and leave it running."""
        return self._start(["-m", "tarsy_scoring", *arguments], env, arguments[0])

    async def run(self, *arguments: str, timeout_s: float = PATIENCE_S, **env: str) -> Finished:
        """Run a command to its end."""
        process = self.command(*arguments, **env)
        status = await process.ended(timeout_s)
        return Finished(status, process.stdout, process.log)

    def _start(self, arguments: list[str], env: Mapping[str, str], name: str) -> Process:
        surroundings = {k: v for k, v in os.environ.items() if not k.startswith(("SCORING_", "OPENAI_"))}
        command = [sys.executable, *arguments]
        process = Process(command, surroundings | self.env | env, self.folder, f"{len(self.processes)}-{name}")
        self.processes.append(process)
        return process

    def all_lines(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Log lines of all processes."""
        return [line for p in self.processes for line in p.lines(event, **fields)]

    async def close(self) -> None:
        """End what still runs; the ends of the logs are shown with a failing test."""
        for process in self.processes:
            if process.status is None:
                process.signal(signal.SIGKILL)
                await process.ended()
            sys.stderr.write(f"--- {process.name}: {process.status}\n{process.log[-TAIL_CHARACTERS:]}\n")
        if self._producer is not None:
            await self._producer.stop()
        if self._connection is not None:
            self._connection.terminate()

    # --- the judge -------------------------------------------------------------------------------------

    def hold(self, match: str | None = None, turn: Literal["any", "analysis", "missing_tools"] = "any") -> None:
        """Hold the judge's calls, or only those with this text, until its script is cleared."""
        self.judge.script(Fault(kind="latency", seconds=HOLD_S, match=match, turn=turn))

    async def asked(self, calls: int) -> None:
        """Wait until the judge has received this many analysis calls."""
        await wait_until(lambda: self.judge.calls_by_turn["analysis"] >= calls, PATIENCE_S, f"{calls} are being judged")

    # --- sessions and events ---------------------------------------------------------------------------

    def add_session(self, session_id: str, **changes: Any) -> None:
        """Put a small session into the folder."""
        path = self.sessions / f"{session_id}.json"
        path.write_text(json.dumps(small_session(session_id) | changes), encoding="utf-8")

    def add_sessions(self, count: int, prefix: str = "session") -> list[str]:
        """Put `count` small sessions into the folder; gives their ids."""
        ids = [f"{prefix}-{n:04d}" for n in range(count)]
        for session_id in ids:
            self.add_session(session_id)
        return ids

    async def announce(self, *session_ids: str, **fields: Any) -> list[str]:
        """Send a `session-completed` for each; gives the event ids, `event-` before the session's."""
        ids = [f"event-{s}" for s in session_ids]
        messages = [
            (s.encode(), json.dumps({"session_id": s, "event_id": e} | fields).encode())
            for s, e in zip(session_ids, ids, strict=True)
        ]
        await self.send(self.topics.session_completed, messages)
        return ids

    async def ask_again(self, session_id: str, event_id: str, **fields: Any) -> str:
        """Send a `rescore-requested`; gives the event id."""
        event = {"session_id": session_id, "event_id": event_id} | fields
        await self.send(self.topics.rescore_requested, [(session_id.encode(), json.dumps(event).encode())])
        return event_id

    async def send(
        self,
        topic: str,
        messages: Iterable[tuple[bytes | None, bytes | None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send raw messages (key, value); returns when the broker has them."""
        if self._producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.topics.bootstrap_servers, acks="all", max_request_size=LARGEST_MESSAGE
            )
            await producer.start()
            self._producer = producer
        sealed = [(name, text.encode()) for name, text in (headers or {}).items()]
        sent = [await self._producer.send(topic, value=value, key=key, headers=sealed) for key, value in messages]
        await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

    async def records(self, topic: str) -> list[Any]:
        """Everything on a topic, in order within each partition."""
        return await read_whole(self.topics.bootstrap_servers, topic)

    async def scoring_events(self) -> list[Seen]:
        """Everything on the topic of scoring events, in order within each partition."""
        records = await self.records(self.topics.scoring_events)
        return [Seen(r.partition, r.key, json.loads(r.value), dict(r.headers), r.value) for r in records]

    async def dead_letters(self) -> list[Any]:
        """Records of the dead-letter topic."""
        return await self.records(self.topics.dead_letters)

    # --- the database ----------------------------------------------------------------------------------

    async def rows(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.database_url, timeout=ANSWER_S, command_timeout=ANSWER_S)
        return await self._connection.fetch(statement, *arguments)

    async def value(self, statement: str, *arguments: Any) -> Any:
        return (await self.rows(statement, *arguments))[0][0]

    async def score_of(self, session_id: str) -> asyncpg.Record | None:
        """The newest score of a session."""
        statement = "SELECT * FROM session_scores WHERE session_id = $1 ORDER BY created_at DESC LIMIT 1"
        found = await self.rows(statement, session_id)
        return found[0] if found else None

    async def score_becomes(self, session_id: str, status: str, timeout_s: float = PATIENCE_S, **columns: Any) -> Any:
        """Wait until a session's newest score has this status and these columns; gives the row."""

        async def seen() -> Any:
            row = await self.score_of(session_id)
            return row if row and row["status"] == status and all(row[k] == v for k, v in columns.items()) else None

        return await wait_until(seen, timeout_s, f"{session_id} becomes {status} {columns}")

    async def disposition(self, event_id: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the request of an event is stored; gives its disposition."""

        async def stored() -> list[asyncpg.Record]:
            return await self.rows("SELECT disposition FROM scoring_requests WHERE event_id = $1", event_id)

        return str((await wait_until(stored, timeout_s, f"the request of {event_id} is stored"))[0]["disposition"])

    async def count(self, condition: str) -> int:
        """Scores for which the SQL condition holds."""
        return int(await self.value(f"SELECT count(*) FROM session_scores WHERE {condition}"))

    async def scores_reach(
        self, count: int, condition: str, timeout_s: float = PATIENCE_S, *, without_backoff: bool = False
    ) -> None:
        """Wait until `count` scores fulfil the SQL condition."""

        async def reached() -> bool:
            if without_backoff:
                await self.let_retries_be_due()
            return await self.count(condition) >= count

        try:
            await wait_until(reached, timeout_s, f"{count} scores are {condition}")
        except AssertionError as error:
            statement = """SELECT status, waiting_reason, error_kind, count(*), min(session_id) AS first
                FROM session_scores GROUP BY 1, 2, 3"""
            there_are = "\n".join(str(dict(row)) for row in await self.rows(statement))
            raise AssertionError(f"{error}\n{there_are}") from None

    async def all_end(self, count: int, timeout_s: float = PATIENCE_S, *, without_backoff: bool = False) -> None:
        """Wait until `count` scores have ended, if wanted without the backoff of those that are put back."""
        await self.scores_reach(count, "completed_at IS NOT NULL", timeout_s, without_backoff=without_backoff)

    async def let_leases_lapse(self) -> None:
        """Make every lease expire now, as if its holder were gone."""
        await self.rows("UPDATE session_scores SET lease_expires_at = now() WHERE status = 'in_progress'")

    async def let_retries_be_due(self) -> None:
        """Make every pending score due now."""
        await self.rows(
            "UPDATE session_scores SET next_attempt_at = now() WHERE status = 'pending' AND next_attempt_at > now()"
        )


OUT_OF_MEMORY = "checkout-7 0/1 OOMKilled 12 restarts"


def small_session(session_id: str, result: str = OUT_OF_MEMORY) -> dict[str, Any]:
    """A session whose alert holds its id, so that a judge call can be matched to its session."""
    written = SMALL_SESSION.replace("{id}", session_id).replace('"{result}"', json.dumps(result))
    session: dict[str, Any] = json.loads(written)
    return session


async def read_whole(bootstrap_servers: str, topic: str) -> list[Any]:
    """All records of a topic up to its end as of now, in order within each partition."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=LARGEST_MESSAGE,
    )
    await consumer.start()
    try:
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        records: dict[int, list[Any]] = defaultdict(list)
        deadline = time.monotonic() + PATIENCE_S
        behind = {p for p in places if ends[p] > 0}
        while behind:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end within {PATIENCE_S:g} s"
            for place, batch in (await consumer.getmany(*behind, timeout_ms=200)).items():
                records[place.partition] += batch
            # Tansu gives as the end one record more than where the last batch begins; its answers to a fetch are right.
            behind = {p for p in behind if await consumer.position(p) < max(ends[p], consumer.highwater(p) or 0)}
        return [r for partition in sorted(records) for r in records[partition]]
    finally:
        await consumer.stop()


# --- what must hold whatever happened ------------------------------------------------------------------


async def assert_whole(
    service: Service,
    completed: Iterable[str],
    *,
    failed: Iterable[str] = (),
    sessions: str = "%",
    earlier_events: int = 0,
) -> list[Seen]:
    """
    Assert that no request or score is lost, doubled or stuck, and that topic and daily counts agree with the tables.

    Args:
        completed: Event ids of requests that must have made one completed score each.
        failed: Those whose one score must have ended without a number.
        sessions: Pattern of LIKE: only these sessions have records on the topic.
        earlier_events: Number of events of other sessions, which were stored before.

    Returns:
        Everything on the topic, repeats included.
    """
    expected = dict.fromkeys(completed, "completed") | dict.fromkeys(failed, "failed")
    await everything_is_published(service)
    assert not await service.rows(counted_again.DIFFERENCES), "the daily counts have each score"
    scores = {
        r["score_id"]: r for r in await service.rows("SELECT * FROM session_scores WHERE session_id LIKE $1", sessions)
    }
    requests = await service.rows("SELECT * FROM scoring_requests WHERE session_id LIKE $1", sessions)
    _assert_requests_and_scores(requests, list(scores.values()), expected)
    turns = await service.rows(
        """SELECT score_id, kind, ordinal FROM judge_turns JOIN session_scores USING (score_id)
        WHERE session_id LIKE $1 ORDER BY score_id, ordinal""",
        sessions,
    )
    _assert_turns(scores, turns)
    seen = await service.scoring_events()
    stored = await service.rows("SELECT * FROM scoring_events WHERE session_id LIKE $1 ORDER BY position", sessions)
    _assert_topic_is_the_log(seen, stored, earlier_events)
    by_score: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in _without_repeats(seen):
        by_score[event.payload["score_id"]].append(event.payload)
    assert set(by_score) == {str(i) for i in scores}, "each score, and no other, has events"
    for score_id, score in scores.items():
        _assert_event_sequence(by_score[str(score_id)], score)
    return seen


async def everything_is_published(service: Service) -> None:
    """Wait until no event is in the outbox."""

    async def published() -> bool:
        return not await service.value(UNPUBLISHED)

    await wait_until(published, PATIENCE_S, "every event is published")


def _assert_requests_and_scores(requests: list[Any], scores: list[Any], expected: Mapping[str, str]) -> None:
    open_ = [(s["session_id"], s["status"]) for s in scores if s["status"] in ("pending", "in_progress")]
    assert not open_, f"{len(open_)} scores are stuck: {open_[:5]}"
    assert all(s["lease_token"] is None and s["completed_at"] is not None for s in scores)
    by_request: dict[Any, list[Any]] = defaultdict(list)
    for score in scores:
        by_request[score["request_id"]].append(score)
    # A chain that was learnt at the first claim may still decline an accepted request.
    declined = {s["request_id"] for s in scores if s["status"] == "cancelled"}
    accepted = {r["request_id"] for r in requests if r["disposition"] == "accepted"}
    assert accepted <= set(by_request) <= accepted | declined, "exactly the accepted requests have scores"
    doubled = {i: len(s) for i, s in by_request.items() if len(s) != 1}
    assert not doubled, f"requests with more than one score: {doubled}"
    by_event = {r["event_id"]: r for r in requests}
    lost = [e for e in expected if e not in by_event]
    assert not lost, f"{len(lost)} requests are lost: {lost[:5]}"
    wrong = {}
    for event_id, outcome in expected.items():
        (score,) = by_request.get(by_event[event_id]["request_id"]) or [None]
        ended_well = score is not None and (score["status"] == "completed") == (outcome == "completed")
        if not ended_well:
            wrong[event_id] = (by_event[event_id]["disposition"], score and (score["status"], score["error_message"]))
    assert not wrong, f"{len(wrong)} requests ended otherwise: {dict(list(wrong.items())[:5])}"


def _assert_turns(scores: Mapping[Any, Any], turns: list[Any]) -> None:
    kinds: dict[Any, list[str]] = defaultdict(list)
    for turn in turns:
        kinds[turn["score_id"]].append(turn["kind"])
    for score_id, score in scores.items():
        if score["status"] == "completed" and score["judge_fingerprint"] is not None:
            wanted = {"analysis"} if "missing_tools_unavailable" in score["flags"] else {"analysis", "missing_tools"}
            assert wanted <= set(kinds[score_id]), f"{score['session_id']} is completed with turns {kinds[score_id]}"


def _assert_topic_is_the_log(seen: list[Seen], stored: list[Any], earlier_events: int) -> None:
    """The topic and `scoring_events` hold the same events, in the order of their positions."""
    positions = range(earlier_events + 1, earlier_events + len(stored) + 1)
    assert [r["position"] for r in stored] == list(positions), "positions have no gaps"
    values: dict[str, bytes] = {}
    for event in seen:
        assert values.setdefault(event.payload["event_id"], event.value) == event.value, "a repeat says the same"
        assert event.headers["ce_id"].decode() == event.payload["event_id"]
        assert event.headers["ce_type"].decode() == event.payload["type"]
    assert set(values) == {str(r["event_id"]) for r in stored}, "topic and event log hold the same events"
    position_of = {str(r["event_id"]): r["position"] for r in stored}
    last: dict[int, int] = {}
    for event in _without_repeats(seen):
        assert event.payload["position"] == position_of[event.payload["event_id"]]
        assert event.payload["position"] > last.get(event.partition, 0), "published in order of position"
        last[event.partition] = event.payload["position"]


def _without_repeats(seen: Iterable[Seen]) -> list[Seen]:
    """The first arrival of each event, as a consumer keeps it that drops repeats by `event_id`."""
    first: dict[str, Seen] = {}
    for event in seen:
        first.setdefault(event.payload["event_id"], event)
    return list(first.values())


def _assert_event_sequence(events: list[dict[str, Any]], score: Any) -> None:
    """One score's events have consecutive sequences, a start per attempt, and one end, last and correct."""
    who = f"score of {score['session_id']}: {[(e['sequence'], e['type'], e.get('phase')) for e in events]}"
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1)), who
    started = [e["attempt"] for e in events if e["type"] == "scoring.started"]
    assert started == list(range(1, score["attempt"] + 1)), who
    assert [e["type"] in TERMINAL for e in events] == [False] * (len(events) - 1) + [True], who
    end = events[-1]
    if score["status"] == "completed":
        assert (end["type"], end["total_score"]) == ("scoring.completed", score["total_score"]), who
    else:
        said = (end["type"], end["status"], end["error_kind"])
        assert said == ("scoring.failed", score["status"], score["error_kind"]), who


# --- the fixture ---------------------------------------------------------------------------------------


@pytest.fixture
async def service(tmp_path: Path, database_url: str, topics: Topics, judge: ScriptedJudge) -> AsyncIterator[Service]:
    """An installation whose processes end with the test."""
    running = Service(tmp_path, database_url, topics, judge)
    try:
        yield running
    finally:
        await running.close()
