"""
Export of scores as JSON lines or CSV, in batches, so that a slow reader holds nothing in the database.
"""

import csv
import io
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from pydantic_core import to_json

from tarsy_scoring.events import InteractionTotals, Usage
from tarsy_scoring.scores.latest import has_no_later
from tarsy_scoring.scores.reader import DOCUMENT, Reader, references_of
from tarsy_scoring.scores.session_list import fetch_planned, matches
from tarsy_scoring.timeline.text import without_invisible

Format = Literal["jsonl", "csv"]

# Scores, newest first. Each score of a session is a row, and the filters are about the score.
EXPORT = f"""{DOCUMENT}
WHERE s.purpose = $13 AND s.status = $2
  AND {matches("s.chain_id", "s.completed_at")}
  AND (NOT $14::bool OR {has_no_later("s", purpose="s.purpose")})
  AND (NOT $15::bool OR EXISTS (SELECT FROM {{schema}}.score_labels l
       WHERE l.session_id = s.session_id AND coalesce(l.score_id = s.score_id, true)))
  AND NOT s.flags ?| $16::text[]
  AND ($17::timestamptz IS NULL OR s.created_at <= $17 AND (s.created_at < $17 OR s.score_id > $18))
ORDER BY s.created_at DESC, s.score_id LIMIT $19
"""

EXPORT_BATCH = 100  # scores in memory at once; a document takes some 20 KB
WITH_REFERENCES = 10  # of them beside their references, of which a session may have 200 KB


@dataclass(frozen=True, slots=True)
class ExportedScore:
    """A score document with the alert type, labels and references of the session."""

    document: dict[str, Any]
    alert_type: str | None
    labels: Mapping[str, str]
    references: Sequence[Mapping[str, Any]] = ()


async def export_scores(reader: Reader, chosen: Sequence[Any]) -> AsyncIterator[list[ExportedScore]]:
    """
    Read all matching scores, newest first, at most `WITH_REFERENCES` at a time; without any, an empty list.

    Args:
        chosen: $1 to $16 of `EXPORT`: the arguments of `Filters`, purpose, whether only the latest of several
            completed scores of a session and only labelled scores count, and flags that exclude a score.

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
        rows = await fetch_planned(reader.database, EXPORT, *chosen, *after, EXPORT_BATCH)
        read_rows = list(zip(await reader.documents(rows), rows, strict=True))
        for start in range(0, max(1, len(rows)), WITH_REFERENCES):
            some = read_rows[start : start + WITH_REFERENCES]
            references = await references_of(reader.database, (r["session_id"] for _, r in some))
            yield [
                ExportedScore(d, r["alert_type"], r["labels"], references.get(r["session_id"], ()))
                for d, r in some
            ]
        if len(rows) < EXPORT_BATCH:
            return
        after = rows[-1]["created_at"], rows[-1]["score_id"]


async def written(batches: AsyncIterable[list[ExportedScore]], how: Format) -> AsyncIterator[bytes]:
    """Encode score by score, after a first part that is the header of CSV, or empty."""
    has_begun = False
    async for batch in batches:
        if not has_begun:
            yield csv_lines([CSV_COLUMNS]).encode() if how == "csv" else b""
            has_begun = True
        for score in batch:
            yield json_line(score) if how == "jsonl" else csv_lines([csv_row(score)]).encode()


# The fields of a CSV row; a new one comes last, so that columns which readers count do not move.
_FIELDS = """
score_id session_id chain_id purpose status attempt score_triggered_by created_at started_at scored_at
total_score outcome outcome_reason judge_outcome composite_score criteria criteria_hash is_current_criteria
judge_fingerprint spread gates_passed gates_total error_kind error_message score_analysis missing_tools_analysis
score_breakdown failure_tags flags missing_tools interaction grounding coverage usage reference pass_threshold judge_passed
"""
# Members that become one cell each, in place of the whole object.
_MEMBERS: Mapping[str, Iterable[str]] = {
    "interaction": InteractionTotals.__dataclass_fields__,
    "grounding": ("share",),
    "coverage": ("shown_share",),
    "usage": Usage.model_fields,
    "reference": ("source_url", "provided_by", "provided_at"),
}
_CELLS = [(name, member) for name in _FIELDS.split() for member in _MEMBERS.get(name, (None,))]
_CELLS += [("reference", "sent_by")]
CSV_COLUMNS = ("alert_type", "labels", *(f"{name}_{member}" if member else name for name, member in _CELLS))

# Beginnings of a cell that a spreadsheet takes for a formula, also behind blanks that it trims. Cells hold no
# invisible characters, behind which a sign could stand.
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
    value = without_invisible(value)
    return ("'" if _FORMULA.match(value) else "") + _FORMULA_INSIDE.sub(r"\1'", value)


def json_line(score: ExportedScore) -> bytes:
    """The document under `score`, with alert type, labels and references of the session."""
    line = {
        "alert_type": score.alert_type,
        "labels": dict(score.labels),
        "references": score.references,
        "score": score.document,
    }
    return to_json(line) + b"\n"
