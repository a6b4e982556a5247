"""
Writes finished scores into TARSy's own tables, so that TARSy's dashboard shows them.

Laws. The write-back follows the positions of `scoring_events`, which have the order of commits and no
gaps, so the bookmark skips nothing. Each score is written in one transaction of TARSy's database, under
the score id; afterwards the score gets the stage's id, and the bookmark moves. After a crash in between,
the row is found and left as it is. Scoring never waits for the write-back. A row that TARSy refuses for its
values is skipped; a refusal that would hit every row stops the write-back until the schema is corrected.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import asyncpg
import structlog

from tarsy_scoring.config.secrets import secret_source
from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.postgres.transactions import LONG_TRANSACTION
from tarsy_scoring.tarsy.database import TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.schema import WRITE_BACK_TABLES, SelectLists, Table
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped
from tarsy_scoring.timeline.model import TERMINAL_STATUSES

log = structlog.get_logger()

Score = dict[str, Any]  # a row of `FINISHED`
Result = Literal["written", "repeated", "session_gone", "session_open", "refused"]

POLL_S = 1.0
RETRY_S = 5.0
WINDOW = 300  # scoring events per pass
PASS_S = 8.0  # a pass starts no further score after this time, because it locks the bookmark
HOLD_S = 60  # limit for the transaction that locks the bookmark
STAGE_TRIES = (
    5  # TARSy and this service number stages without a lock, so another writer may take the number first
)
STAGE_NAME = "Evaluation"
_NAMESPACE = uuid.UUID("b6b1d0a6-5a9f-5d1c-9d64-1f0e7c1f8a55")  # never change: it would make old stages new

# Refusals of the values of one row; every other refusal is about the schema.
OF_ONE_ROW = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.StringDataRightTruncationError,
    asyncpg.NumericValueOutOfRangeError,
    asyncpg.InvalidParameterValueError,
)

# --- our tables ------------------------------------------------------------------------------------------

# The first bookmark is at the present position: scores from before the write-back was enabled are not
# written.
FIRST_BOOKMARK = """
INSERT INTO {schema}.write_back_bookmark (follower, position)
SELECT 'write_back', position FROM {schema}.relay_position ON CONFLICT DO NOTHING RETURNING position
"""

# One writer at a time: the one that has locked the row.
BOOKMARK = """
SELECT position FROM {schema}.write_back_bookmark WHERE follower = 'write_back' FOR UPDATE SKIP LOCKED
"""

# The next events, joined with the finished scores that TARSy's dashboard may show. The dashboard expects a
# number in a completed score: a newer score without one would hide the number of an older score. The columns
# are named as in TARSy's table; the prefix of `score_triggered_by` marks the rows of this service.
FINISHED = """
WITH next AS MATERIALIZED (
  SELECT position, score_id, type FROM {schema}.scoring_events WHERE position > $1 ORDER BY position LIMIT $2
)
SELECT n.position, s.score_id::text, s.session_id, s.status, s.total_score, s.score_analysis,
       s.missing_tools_analysis AS tool_improvement_report, s.criteria_hash AS prompt_hash,
       'tarsy-scoring:' || s.score_triggered_by AS score_triggered_by, s.failure_tags::text, s.error_message,
       coalesce(s.started_at, s.created_at) AS started_at, s.completed_at
FROM next n LEFT JOIN {schema}.session_scores s
  ON s.score_id = n.score_id AND n.type IN ('scoring.completed', 'scoring.failed')
     AND s.purpose = 'production'
     AND (s.status IN ('failed', 'timed_out') OR s.status = 'completed' AND s.total_score IS NOT NULL)
ORDER BY n.position
"""

# A pass that is repeated changes nothing: the stage of a score always has the same id.
NAME_STAGES = """
UPDATE {schema}.session_scores s SET stage_id = w.stage_id
FROM unnest($1::uuid[], $2::text[]) AS w(score_id, stage_id)
WHERE s.score_id = w.score_id AND s.stage_id IS DISTINCT FROM w.stage_id
"""

MOVE = "UPDATE {schema}.write_back_bookmark SET position = $1 WHERE follower = 'write_back'"

BACKLOG = """
SELECT r.position - b.position FROM {schema}.relay_position r, {schema}.write_back_bookmark b
WHERE b.follower = 'write_back'
"""

# --- TARSy's tables ---------------------------------------------------------------------------------------

# No row lock: it would require UPDATE on alert_sessions, and a terminal session stays terminal.
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

_SCORE_COLUMNS = WRITE_BACK_TABLES["session_scores"].written
ADD_SCORE = f"""
INSERT INTO session_scores ({", ".join(_SCORE_COLUMNS)})
VALUES ({", ".join(f"${n}" for n in range(1, len(_SCORE_COLUMNS) + 1))})
"""

NOTIFY = "SELECT pg_notify($1, $2)"
CHANNEL = "sessions"


def open_write_back_tarsy(settings: Settings, needs: Mapping[str, Table] = WRITE_BACK_TABLES) -> TarsyPool:
    """
    TARSy's database for writing; connects to nothing yet. `SCORING_WRITE_BACK_DATABASE_URL` must be set.
    """
    url = secret_source(settings, "write_back_database_url")
    return TarsyPool(url, variable_of("write_back_database_url"), needs, is_read_only=False)


class WriteBack:
    """The write-back of this process: it works, or it stands by while another process works."""

    def __init__(self, database: Database, tarsy: TarsyPool, metrics: Metrics) -> None:
        self._database = database
        self._tarsy = tarsy
        self._metrics = metrics
        for result in get_args(Result):  # a series that begins with the first count has no increase
            metrics.write_backs.labels(result)

    async def run(self, stopping: asyncio.Event) -> None:
        """Write back until `stopping`; remaining scores are written later or by another process."""
        is_waiting, patience = False, self._database.patience()
        try:
            while not stopping.is_set():
                pause_s = RETRY_S
                try:
                    with patience:
                        pause_s = 0 if await self.run_once() else POLL_S
                        is_waiting = False
                except (TarsyAway, TarsyUnfit) as error:
                    if not is_waiting:
                        log.warning("write_back.waiting", reason=str(error), retry_in_s=RETRY_S)
                    is_waiting = True
                await unless_stopped(asyncio.sleep(pause_s), stopping)
        finally:
            await self._tarsy.close()

    async def run_once(self) -> bool:
        """
        Write back the scores that the next scoring events finish; returns whether the bookmark moved.

        Raises:
            TarsyAway, TarsyUnfit, DatabaseAway: The bookmark stands before the first score that is not
                written.
        """
        moved, failure = await self._database.once(self._work)
        backlog = await self._database.once(lambda c: c.fetchval(self._database.sql(BACKLOG)))
        self._metrics.write_back_backlog.set(backlog or 0)
        if failure is not None:
            raise failure
        return moved

    async def _work(self, connection: Connection) -> tuple[bool, TarsyAway | TarsyUnfit | None]:
        """
        Write the scores of one pass under the lock of the bookmark, unless another process holds it.

        Returns:
            Whether the bookmark moved, and the failure that ended the pass. Raising the failure would roll
            the bookmark back.
        """
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLD_S}s'")
        await connection.execute(LONG_TRANSACTION)
        sql = self._database.sql
        if first := await connection.fetch(sql(FIRST_BOOKMARK)):
            log.warning(
                "write_back.first_start", position=first[0]["position"], effect="earlier scores stay here"
            )
        start = await connection.fetchval(sql(BOOKMARK))
        if start is None:
            return False, None
        position, failure, written = start, None, list[str]()
        until = time.monotonic() + PASS_S
        for row in await connection.fetch(sql(FINISHED), start, WINDOW):
            if row["score_id"] is not None:
                if time.monotonic() > until:
                    break
                try:
                    result = await self._write_score(dict(row))
                except (TarsyAway, TarsyUnfit) as error:
                    failure = error
                    break
                self._metrics.write_backs.labels(result).inc()
                if result in ("written", "repeated"):
                    written.append(row["score_id"])
            position = row["position"]
        if written:
            await connection.execute(
                sql(NAME_STAGES), written, [stage_id_of(score_id) for score_id in written]
            )
        if position != start:  # after a failure, too: scores that were written are not read again
            await connection.execute(sql(MOVE), position)
        return position != start, failure

    async def _write_score(self, score: Score) -> Result:
        """
        Write one score into TARSy's tables; idempotent.

        Sorts TARSy's refusals: try again, skip this row, or stop for the schema.

        Raises:
            TarsyAway, TarsyUnfit: The score may have been written; call again.
        """
        refusal: Exception | None = None
        for _ in range(STAGE_TRIES):
            try:
                async with self._tarsy.transaction() as (connection, columns):
                    return await _write(score, connection, columns)
            except (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError) as error:
                # Another writer took the stage number, or the session was just deleted: try again.
                refusal = error
            except OF_ONE_ROW as error:
                refusal = error
                break
            except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
                raise self._refuses_every_row(error) from error
        assert refusal is not None
        if isinstance(refusal, asyncpg.ForeignKeyViolationError):
            raise self._refuses_every_row(refusal) from refusal
        log.error(
            "write_back.refused",
            score_id=score["score_id"],
            session_id=score["session_id"],
            reason=_describe(refusal),
            effect="this score is skipped",
        )
        return "refused"

    def _refuses_every_row(self, error: Exception) -> TarsyUnfit:
        return TarsyUnfit(
            f"TARSy's database at {self._tarsy.place} refuses what is written: {_describe(error)}; its "
            "schema is not the one this version knows: upgrade this service, or unset "
            "SCORING_WRITE_BACK_DATABASE_URL"
        )


def _describe(error: Exception) -> str:
    """The type of a refusal with the table, column and constraint behind it; never the refused values."""
    names = [getattr(error, name, None) for name in ("table_name", "column_name", "constraint_name")]
    return " ".join([type(error).__name__, *(n for n in names if n)])


def stage_id_of(score_id: str) -> str:
    """
    The id of a score's stage in TARSy, derived from that of the score: a repeated write finds the stage.
    """
    return str(uuid.uuid5(_NAMESPACE, score_id))


async def _write(score: Score, connection: Connection, columns: SelectLists) -> Result:
    stage_id = stage_id_of(score["score_id"])
    session = await connection.fetchrow(
        FIND.format(**columns), score["session_id"], score["score_id"], stage_id
    )
    if session is None or session["is_deleted"]:
        return "session_gone"
    if session["is_written"]:
        return "repeated"
    if session["status"] not in TERMINAL_STATUSES:
        # TARSy would take our stage, the last one, for the progress of a running session.
        log.warning("write_back.session_open", session_id=score["session_id"], effect="this score is skipped")
        return "session_open"
    stage_index = session["stage_index"]
    if stage_index is None:  # otherwise the score of this stage was removed in TARSy
        stage = ("status", "started_at", "completed_at", "error_message", "session_id")
        stage_index = await connection.fetchval(
            ADD_STAGE, stage_id, STAGE_NAME, *(score[name] for name in stage)
        )
    row = score | {"stage_id": stage_id}
    await connection.execute(ADD_SCORE, *(row[name] for name in _SCORE_COLUMNS))
    await _announce(row, stage_index, connection)
    return "written"


async def _announce(score: Score, stage_index: int, connection: Connection) -> None:
    """
    Notify TARSy's dashboard; PostgreSQL delivers the notifications at the commit.

    No row is added to TARSy's table `events`, from which TARSy's pages catch up after a lost connection. TARSy
    deletes the rows of a session a minute after the end; a row of a later score would stay for hours, and
    deleting it takes one more grant.
    """
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    common = {"session_id": score["session_id"], "timestamp": now}
    stage: dict[str, Any] = common | {
        "type": "stage.status",
        "stage_id": score["stage_id"],
        "stage_name": STAGE_NAME,
        "stage_index": stage_index,
        "stage_type": "scoring",
        "status": score["status"],
    }
    updated = common | {
        "type": "session.score_updated",
        "scoring_status": "completed" if score["status"] == "completed" else "failed",
    }
    own_channel = f"session:{score['session_id']}"
    await connection.execute(NOTIFY, CHANNEL, json.dumps(updated))
    await connection.execute(NOTIFY, own_channel, json.dumps(stage))
    await connection.execute(NOTIFY, own_channel, json.dumps(updated))
