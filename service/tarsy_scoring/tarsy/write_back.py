"""
Finished scores into TARSy's own tables, where a deployment wants its dashboard to show them.

Laws. It follows the positions of `scoring_events`, which are given in the order of commits and without
gaps, so a bookmark passes over nothing. A score goes over in one transaction of TARSy's database, under
our score id, and the bookmark moves afterwards: a crash in between finds the row and leaves it. Nothing
waits for it: TARSy's database may be away for as long as it likes. What TARSy refuses for one row is
passed over; what it would refuse for every row stops it until somebody has looked.
"""

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, get_args

import asyncpg
import structlog

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.postgres.transactions import LONG_TRANSACTION
from tarsy_scoring.tarsy.database import CHANNEL, TarsyAway, TarsyPool, TarsyUnfit, describe_refusal
from tarsy_scoring.tarsy.schema import WRITE_BACK_TABLES, SelectLists
from tarsy_scoring.telemetry.health import unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import TERMINAL_STATUSES

log = structlog.get_logger()

Result = Literal["written", "repeated", "session_gone", "session_open", "refused"]

POLL_S = 1.0
RETRY_S = 5.0
WINDOW = 300  # scoring events looked at in one pass
PASS_S = 8.0  # no further score is begun after that: a pass holds our bookmark
HOLD_S = 60
START_TIMEOUT_S = 3.0
STAGE_TRIES = 5  # TARSy numbers its stages without a lock, as we must: somebody else may be faster
STAGE_NAME = "Evaluation"
LONGEST_CHANNEL_BYTES = 63
TRIGGERED_BY = "tarsy-scoring:"  # before who asked: whose row it is
_NAMESPACE = uuid.UUID("b6b1d0a6-5a9f-5d1c-9d64-1f0e7c1f8a55")  # never change: it would make old stages new

# What is wrong with the values of one row; every other refusal is about the schema.
OF_ONE_ROW = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.StringDataRightTruncationError,
    asyncpg.NumericValueOutOfRangeError,
    asyncpg.InvalidParameterValueError,
)

# --- what is ours -----------------------------------------------------------------------------------------

# What was scored before it was switched on stays where it is.
FIRST_BOOKMARK = """
INSERT INTO {schema}.write_back_bookmark (position) SELECT position FROM {schema}.relay_position
ON CONFLICT DO NOTHING RETURNING position
"""

# One writer at a time: whoever holds the row.
BOOKMARK = "SELECT position FROM {schema}.write_back_bookmark FOR UPDATE SKIP LOCKED"

# The next events, and of these the ends of scores that TARSy's dashboard may show. It takes a completed score for one
# with a number: a newer one without would hide the number of an older one.
FINISHED = """
WITH next AS MATERIALIZED (
  SELECT position, score_id, type FROM {schema}.scoring_events WHERE position > $1 ORDER BY position LIMIT $2
)
SELECT n.position, s.score_id, s.session_id, s.status, s.total_score, s.score_analysis, s.missing_tools_analysis,
       s.criteria_hash, s.score_triggered_by, s.failure_tags, s.error_message,
       coalesce(s.started_at, s.created_at) AS started_at, s.completed_at
FROM next n LEFT JOIN {schema}.session_scores s
  ON s.score_id = n.score_id AND n.type IN ('scoring.completed', 'scoring.failed')
     AND s.purpose = 'production'
     AND (s.status IN ('failed', 'timed_out') OR s.status = 'completed' AND s.total_score IS NOT NULL)
ORDER BY n.position
"""

MOVE = "UPDATE {schema}.write_back_bookmark SET position = $1"

BACKLOG = """
SELECT r.position - b.position FROM {schema}.relay_position r, {schema}.write_back_bookmark b
"""

# --- what is TARSy's --------------------------------------------------------------------------------------

# What has ended there stays so, hence no lock: one would ask for the right to change sessions.
FIND = """
SELECT status, deleted_at IS NOT NULL AS is_deleted,
       EXISTS (SELECT FROM session_scores WHERE score_id = $2) AS is_written,
       (SELECT stage_index FROM stages WHERE stage_id = $3) AS stage_index
FROM (SELECT {alert_sessions} FROM alert_sessions) s WHERE session_id = $1
"""

ADD_STAGE = """
INSERT INTO stages (stage_id, stage_name, stage_index, expected_agent_count, status, started_at, completed_at,
                    error_message, session_id, stage_type)
SELECT $1, $2, coalesce(max(stage_index), 0) + 1, 1, $3, $4, $5, $6, $7::varchar, 'scoring'
FROM stages WHERE session_id = $7::varchar
RETURNING stage_index
"""

ADD_SCORE = """
INSERT INTO session_scores (score_id, prompt_hash, total_score, score_analysis, tool_improvement_report,
  score_triggered_by, status, started_at, completed_at, error_message, session_id, stage_id, failure_tags)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
"""

ADD_EVENT = "INSERT INTO events (channel, payload, created_at, session_id) VALUES ($1, $2, $3, $4) RETURNING id"

NOTIFY = "SELECT pg_notify($1, $2)"


@dataclass(frozen=True, slots=True)
class Finished:
    """A score as TARSy's table can hold it."""

    score_id: uuid.UUID
    session_id: str
    status: str
    total_score: int | None
    score_analysis: str | None
    missing_tools_analysis: str | None
    criteria_hash: str | None
    score_triggered_by: str
    failure_tags: object
    error_message: str | None
    started_at: datetime
    completed_at: datetime

    @property
    def stage_id(self) -> str:
        """Of the stage that stands for it in TARSy; the same for ever."""
        return str(uuid.uuid5(_NAMESPACE, str(self.score_id)))


def open_write_back_tarsy(settings: Settings) -> TarsyPool:
    """
    TARSy's database for writing; connects to nothing yet.

    Raises:
        ConfigurationError: It is not set, or can never work.
    """
    variable = variable_of("write_back_database_url")
    if settings.write_back_database_url is None:
        raise ConfigurationError(
            f"SCORING_WRITE_BACK is true and {variable} is not set: give TARSy's PostgreSQL, with a role that may "
            "insert scores, stages and events"
        )
    return TarsyPool(
        settings.write_back_database_url.get_secret_value(), variable, WRITE_BACK_TABLES, is_read_only=False
    )


class WriteBack:
    """The write-back of this process: working, or standing by while another process works."""

    def __init__(self, database: Database, tarsy: TarsyPool, metrics: Metrics) -> None:
        self._database = database
        self._tarsy = tarsy
        self._metrics = metrics
        for result in get_args(Result):  # a series that begins with its first count has no increase
            metrics.write_backs.labels(result)

    async def require_fit(self) -> None:
        """
        See at the start that TARSy's tables are what they must be, where they can be seen at once.

        Raises:
            TarsyUnfit: They are not.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._tarsy.once(lambda c, _: c.execute("SELECT 1"))
        except (TarsyAway, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            log.warning("write_back.waiting", reason=reason, effect="scores are written back when it is there")

    async def run(self, stopping: asyncio.Event) -> None:
        """Write back until `stopping`; what remains is somebody else's, or waits."""
        try:
            while not stopping.is_set():
                await unless_stopped(asyncio.sleep(await self._pass()), stopping)
        finally:
            await self._tarsy.close()

    async def _pass(self) -> float:
        """Seconds until the next one."""
        try:
            return 0 if await self.run_once() else POLL_S
        except (TarsyAway, TarsyUnfit, DatabaseAway) as error:
            log.warning("write_back.waiting", reason=str(error), retry_in_s=RETRY_S)
            return RETRY_S

    async def run_once(self) -> bool:
        """
        Look at the next scoring events, write back what they end; says whether there is more.

        Raises:
            TarsyAway, TarsyUnfit, DatabaseAway: The bookmark stands before what is not written.
        """
        moved, failure = await self._database.once(self._work)
        await self._measure()
        if failure is not None:
            raise failure
        return moved

    async def _work(self, connection: Connection) -> tuple[bool, TarsyAway | TarsyUnfit | None]:
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLD_S}s'")
        await connection.execute(LONG_TRANSACTION)
        sql = self._database.sql
        if first := await connection.fetch(sql(FIRST_BOOKMARK)):
            log.warning("write_back.first_start", position=first[0]["position"], effect="earlier scores stay here")
        start = await connection.fetchval(sql(BOOKMARK))
        if start is None:
            return False, None
        position, failure = start, None
        until = time.monotonic() + PASS_S
        for row in await connection.fetch(sql(FINISHED), start, WINDOW):
            if row["score_id"] is not None:
                if time.monotonic() > until:
                    break
                try:
                    await self.write(Finished(**{name: row[name] for name in Finished.__dataclass_fields__}))
                except (TarsyAway, TarsyUnfit) as error:
                    failure = error
                    break
            position = row["position"]
        if position != start:  # also after a failure: what was written is not looked at again
            await connection.execute(sql(MOVE), position)
        return position != start, failure

    async def write(self, score: Finished) -> Result:
        """
        Put one score into TARSy's tables, once however often it is asked.

        Raises:
            TarsyAway, TarsyUnfit: It may have been written; asking again tells.
        """
        result: Result = "refused"
        refusal: Exception | None = None
        for _ in range(STAGE_TRIES):
            try:
                result = await self._tarsy.once(partial(_write, score))
                break
            except (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError) as error:
                refusal = error  # somebody else numbered a stage, or the session has just gone: another look tells
            except OF_ONE_ROW as error:
                refusal = error
                break
            except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
                raise self._tarsy.refuses_every_row(error) from error
        if result == "refused":
            assert refusal is not None
            if isinstance(refusal, asyncpg.ForeignKeyViolationError):
                raise self._tarsy.refuses_every_row(refusal) from refusal
            names = {"score_id": str(score.score_id), "session_id": score.session_id}
            log.error(
                "write_back.refused", **names, reason=describe_refusal(refusal), effect="this score is passed over"
            )
        if result == "session_open":
            log.warning("write_back.session_open", session_id=score.session_id, effect="this score is passed over")
        self._metrics.write_backs.labels(result).inc()
        return result

    async def _measure(self) -> None:
        backlog = await self._database.once(lambda c: c.fetchval(self._database.sql(BACKLOG)))
        self._metrics.write_back_backlog.set(backlog or 0)


async def _write(score: Finished, connection: Connection, columns: SelectLists) -> Result:
    session = await connection.fetchrow(FIND.format(**columns), score.session_id, str(score.score_id), score.stage_id)
    if session is None or session["is_deleted"]:
        return "session_gone"
    if session["is_written"]:
        return "repeated"
    if session["status"] not in TERMINAL_STATUSES:
        return "session_open"  # TARSy goes by the last stage of what still runs: ours would be taken for its work
    # A stage of ours without its score: somebody removed the score.
    stage_index = session["stage_index"] or await _add_stage(score, connection)
    await connection.execute(
        ADD_SCORE,
        str(score.score_id),
        score.criteria_hash,
        score.total_score,
        score.score_analysis,
        score.missing_tools_analysis,
        TRIGGERED_BY + score.score_triggered_by,
        score.status,
        score.started_at,
        score.completed_at,
        score.error_message,
        score.session_id,
        score.stage_id,
        _tags(score.failure_tags),
    )
    await _announce(score, stage_index, connection)
    return "written"


async def _add_stage(score: Finished, connection: Connection) -> int:
    values = (score.stage_id, STAGE_NAME, score.status, score.started_at, score.completed_at, score.error_message)
    return int(await connection.fetchval(ADD_STAGE, *values, score.session_id))


def _tags(tags: object) -> str | None:
    """An array of strings, or null: TARSy fails to read every list with a row of another shape."""
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        return json.dumps(tags)
    return None


async def _announce(score: Finished, stage_index: int, connection: Connection) -> None:
    """Tell TARSy's dashboard; PostgreSQL delivers it when the score is committed."""
    now = datetime.now(UTC)
    common = {"session_id": score.session_id, "timestamp": now.isoformat().replace("+00:00", "Z")}
    stage: dict[str, Any] = common | {
        "type": "stage.status",
        "stage_id": score.stage_id,
        "stage_name": STAGE_NAME,
        "stage_index": stage_index,
        "stage_type": "scoring",
        "status": score.status,
    }
    updated = common | {
        "type": "session.score_updated",
        "scoring_status": "completed" if score.status == "completed" else "failed",
    }
    own_channel = f"session:{score.session_id}"
    db_event_id = await connection.fetchval(ADD_EVENT, own_channel, json.dumps(stage), now, score.session_id)
    await connection.execute(NOTIFY, CHANNEL, json.dumps(updated))
    if len(own_channel.encode()) <= LONGEST_CHANNEL_BYTES:
        await connection.execute(NOTIFY, own_channel, json.dumps(stage | {"db_event_id": db_event_id}))
        await connection.execute(NOTIFY, own_channel, json.dumps(updated))
