"""
Export of scores as JSON lines or CSV, in batches, so that a slow reader holds nothing in the database.
"""

import csv
import io
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from pydantic_core import to_json

from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.fields import SCORE_FIELDS
from tarsy_scoring.scores.latest import has_no_later
from tarsy_scoring.scores.reader import DOCUMENT, Reader, references_of
from tarsy_scoring.scores.session_list import CUSTOM_PLAN, ENDED, Filters, matches

Purpose = Literal["production", "consistency", "anchor", "shadow"]
Format = Literal["jsonl", "csv"]

# Scores, newest first. Each score of a session is a row, and the filters are about the score.
_CHOSEN = f"""s.purpose = $13 AND s.status = $2
  AND {matches("s.chain_id", "s.completed_at")}
  AND (NOT $14::bool OR {has_no_later("s", purpose="s.purpose")})
  AND (NOT $15::bool OR EXISTS (SELECT FROM {{schema}}.score_labels l WHERE l.score_id = s.score_id))
  AND NOT s.flags ?| $16::text[]
  AND ($17::timestamptz IS NULL OR {ENDED} >= $17) AND ($18::timestamptz IS NULL OR {ENDED} < $18)"""
EXPORT = f"""{DOCUMENT}
WHERE {_CHOSEN}
  AND ($19::timestamptz IS NULL OR s.created_at <= $19 AND (s.created_at < $19 OR s.score_id > $20))
ORDER BY s.created_at DESC, s.score_id LIMIT $21
"""
NUMBER = f"""
SELECT count(*) FROM {{schema}}.session_scores s JOIN {{schema}}.sessions m USING (session_id) WHERE {_CHOSEN}
"""

EXPORT_BATCH = 100  # scores in memory at once; a document takes some 20 KB


@dataclass(frozen=True, slots=True)
class ExportedScore:
    """A score document with the alert type, labels and references of the session."""

    document: dict[str, Any]
    alert_type: str | None
    labels: Mapping[str, str]
    references: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    The scores to export.

    Args:
        filters: `status` is that of the score; None means `completed`.
        only_latest: Of several completed scores of a session, only the latest.
        only_labelled: Only scores that people have labelled.
        without_flags: Without scores that have one of these flags.
        ended_since, ended_until: Range of the time when the session ended, as in the list of sessions;
            `ended_until` is exclusive.
    """

    filters: Filters
    purpose: Purpose = "production"
    only_latest: bool = False
    only_labelled: bool = False
    without_flags: tuple[str, ...] = ()
    ended_since: datetime | None = None
    ended_until: datetime | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $18 of the statements."""
        filters = replace(self.filters, status=self.filters.status or "completed")
        chosen = self.purpose, self.only_latest, self.only_labelled
        ended = self.ended_since, self.ended_until
        return *filters.arguments, *chosen, list(self.without_flags), *ended


async def count_scores(database: Database, chosen: Chosen) -> int:
    """Number of these scores. Raises: DatabaseAway."""

    async def work(connection: Connection) -> int:
        await connection.execute(CUSTOM_PLAN)
        return int(await connection.fetchval(database.sql(NUMBER), *chosen.arguments))

    return await database.once(work)


async def export_scores(reader: Reader, chosen: Chosen) -> AsyncIterator[list[ExportedScore]]:
    """
    Read all matching scores, newest first, a batch at a time.

    Scores created after the first batch are left out. A score that changes before the batch is read is
    exported in the new state.

    Raises:
        DatabaseAway: Before the first batch or between two.
    """
    after: tuple[datetime | None, UUID | None] = (None, None)
    # Between two batches nothing is held: no connection, no transaction, no snapshot. A server-side cursor
    # was rejected: a slow reader would have it cut after `IDLE_IN_TRANSACTION_S`, and until then the snapshot
    # would keep the dead rows of the work queue from being removed.
    while True:
        rows = await _fetch_batch(reader.database, [*chosen.arguments, *after, EXPORT_BATCH])
        documents = await reader.documents(rows)
        references = await references_of(reader.database, [r["session_id"] for r in rows])
        yield [
            ExportedScore(d, r["alert_type"], r["labels"], references.get(r["session_id"], ()))
            for d, r in zip(documents, rows, strict=True)
        ]
        if len(rows) < EXPORT_BATCH:
            return
        after = rows[-1]["created_at"], rows[-1]["score_id"]


async def written(
    batches: AsyncIterable[list[ExportedScore]], how: Format
) -> AsyncIterator[tuple[bytes, int]]:
    """Encode each batch: bytes and number of scores. CSV begins with the header."""
    has_begun = False
    async for batch in batches:
        if how == "jsonl":
            text = json_lines(batch)
        else:
            header = () if has_begun else (CSV_COLUMNS,)
            text = csv_lines([*header, *map(csv_row, batch)]).encode()
        has_begun = True
        yield text, len(batch)


async def _fetch_batch(database: Database, arguments: Sequence[Any]) -> list[Mapping[str, Any]]:
    async def work(connection: Connection) -> list[Mapping[str, Any]]:
        await connection.execute(CUSTOM_PLAN)
        return [dict(r) for r in await connection.fetch(database.sql(EXPORT), *arguments)]

    return await database.once(work)


# A score's cells in order: a document field and, for an object, one member.
_CELLS = [
    (field.name, member)
    for field in sorted((f for f in SCORE_FIELDS if f.csv is not None), key=lambda field: field.csv or 0)
    for member in field.csv_members or (None,)
]
CSV_COLUMNS = ("alert_type", "labels", *(f"{name}_{member}" if member else name for name, member in _CELLS))

# Beginnings of a cell that a spreadsheet takes for a formula, also behind blanks that it trims.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
# A spreadsheet whose separator is `;` or a tab, as in many countries, ignores our quotes: for it a cell
# begins in the middle of ours, and a row at each line break.
_FORMULA_INSIDE = re.compile(r"""([;\t\r\n][\s"']*)(?=[=+\-@＝＋－＠])""")


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """
    Lines of CSV (RFC 4180).

    Text that a spreadsheet would run as a formula gets an apostrophe in front: at the beginning of a cell,
    and behind each `;`, tab and line break in it.
    """
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerows([_cell(value) for value in row] for row in rows)
    return written.getvalue()


def csv_row(score: ExportedScore) -> list[Any]:
    """The values of `CSV_COLUMNS`. Lists are joined with `; `; a null object has null members."""
    values: list[Any] = [score.alert_type, dict(score.labels)]
    for name, member in _CELLS:
        value = score.document[name]
        if member is not None:
            value = (value or {}).get(member)
        elif isinstance(value, list):
            value = "; ".join(item["tool_name"] if name == "missing_tools" else item for item in value)
        values.append(value)
    return values


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        value = to_json(value).decode() if value else ""
    if not isinstance(value, str):
        return value
    return ("'" if _FORMULA.match(value) else "") + _FORMULA_INSIDE.sub(r"\1'", value)


def json_lines(scores: Iterable[ExportedScore]) -> bytes:
    """
    Encode one line per score: the document under `score`, with alert type, labels and references of its
    session.
    """
    lines = (
        {
            "alert_type": s.alert_type,
            "labels": dict(s.labels),
            "references": s.references,
            "score": s.document,
        }
        for s in scores
    )
    return b"".join(to_json(line) + b"\n" for line in lines)
