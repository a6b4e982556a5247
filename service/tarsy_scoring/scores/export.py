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

from tarsy_scoring.events import InteractionTotals, Purpose, Usage
from tarsy_scoring.postgres.database import Connection
from tarsy_scoring.scores.latest import has_no_later
from tarsy_scoring.scores.reader import DOCUMENT, Reader, references_of
from tarsy_scoring.scores.session_list import CUSTOM_PLAN, Filters, matches
from tarsy_scoring.scores.shapes import Reference

Format = Literal["jsonl", "csv"]

# Scores, newest first. Each score of a session is a row, and the filters are about the score.
EXPORT = f"""{DOCUMENT}
WHERE s.purpose = $13 AND s.status = $2
  AND {matches("s.chain_id", "s.completed_at")}
  AND (NOT $14::bool OR {has_no_later("s", purpose="s.purpose")})
  AND (NOT $15::bool OR EXISTS (SELECT FROM {{schema}}.score_labels l WHERE l.score_id = s.score_id))
  AND NOT s.flags ?| $16::text[]
  AND ($17::timestamptz IS NULL OR s.created_at <= $17 AND (s.created_at < $17 OR s.score_id > $18))
ORDER BY s.created_at DESC, s.score_id LIMIT $19
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
    """

    filters: Filters
    purpose: Purpose = "production"
    only_latest: bool = False
    only_labelled: bool = False
    without_flags: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """$1 to $16 of the statement."""
        filters = replace(self.filters, status=self.filters.status or "completed")
        chosen = self.purpose, self.only_latest, self.only_labelled
        return *filters.arguments, *chosen, list(self.without_flags)


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
        arguments = *chosen.arguments, *after, EXPORT_BATCH

        async def read(connection: Connection, arguments: tuple[Any, ...] = arguments) -> list[Any]:
            await connection.execute(CUSTOM_PLAN)
            return await connection.fetch(reader.database.sql(EXPORT), *arguments)

        rows = await reader.database.once(read)
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
    header = [CSV_COLUMNS]
    async for batch in batches:
        if how == "jsonl":
            yield json_lines(batch), len(batch)
        else:
            yield csv_lines([*header, *map(csv_row, batch)]).encode(), len(batch)
            header = []


# The fields of a CSV row; a new one comes last, so that columns which readers count do not move.
_FIELDS = """
score_id session_id chain_id purpose status attempt score_triggered_by created_at started_at scored_at
total_score outcome outcome_reason judge_outcome composite_score criteria criteria_hash is_current_criteria
judge_fingerprint spread gates_passed gates_total error_kind error_message score_analysis missing_tools_analysis
score_breakdown failure_tags flags missing_tools interaction grounding coverage usage reference pass_threshold judge_passed
"""
# Members that become one cell each, in place of the whole object.
_MEMBERS: Mapping[str, Iterable[str]] = {
    "interaction": InteractionTotals.model_fields,
    "grounding": ("share",),
    "coverage": ("shown_share",),
    "usage": Usage.model_fields,
    "reference": Reference.model_fields,
}
_CELLS = [(name, member) for name in _FIELDS.split() for member in _MEMBERS.get(name, (None,))]
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
