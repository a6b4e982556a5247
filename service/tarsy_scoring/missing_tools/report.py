"""The missing-tools report: the ledger with the judges' own reasons, each with the score it comes from."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC
from typing import Any

from tarsy_scoring.analytics.analytics import SELECTED, Selection, ToolSort
from tarsy_scoring.missing_tools.ledger import LedgerEntry, State, read_ledger
from tarsy_scoring.missing_tools.needs import MOST_NEEDS, QUOTES_PER_NEED, LeftOut, Reading
from tarsy_scoring.missing_tools.reasons import Reason, clipped
from tarsy_scoring.missing_tools.tool_effect import demand_in_words
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.text import one_line

REASONS_PER_TOOL = 3
MOST_LEFT_OUT = 20  # chains listed by name

# Characters with a meaning in Markdown. An underscore within a word, as in most tool names, has none.
_MARKS = re.compile(r"[\\`*\[\]<>#|!~&$]|(?<![^\W_])_|_(?![^\W_])")
# Line beginnings that make a list, a rule or a heading.
_BEGINS_BLOCK = re.compile(r"\A(?:(?=[-+=])|([0-9]{1,9})(?=[.)]))")
# Text that renderers turn into links: addresses, people (`@ada`), numbers of issues and merge requests.
_LINKED = re.compile(r"://|www\.|@|[#!][0-9]", re.IGNORECASE)

# At most $7 reasons for each tool, from the scores that lost most ($5 spellings, $6 the tool of each).
REASONS = f"""
SELECT tool, score_id, session_id, total_score, rationale, completed_at FROM (
  SELECT r.*, row_number() OVER (PARTITION BY tool ORDER BY total_score NULLS LAST, completed_at DESC, score_id) AS n
  FROM (SELECT DISTINCT ON (w.tool, s.score_id) w.tool, s.score_id, s.session_id, s.total_score, s.completed_at,
               t.rationale
        FROM {{schema}}.session_scores s JOIN {{schema}}.score_missing_tools t USING (score_id)
        JOIN unnest($5::text[], $6::int[]) AS w(tool_name, tool) ON w.tool_name = t.tool_name
        WHERE {SELECTED} ORDER BY w.tool, s.score_id, t.ordinal) r) ranked
WHERE n <= $7 ORDER BY tool, n
"""

HEADINGS: Mapping[State, str] = {
    "still_missed": "Built, and still missed",
    "open": "To be built",
    "planned": "Planned",
    "built": "Built, and being measured",
    "confirmed": "Built, and no longer requested",
}


@dataclass(frozen=True, slots=True)
class ReportedTool:
    """A tool of the ledger, with reasons from the scores that lost most."""

    entry: LedgerEntry
    reasons: list[Reason]


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The missing tools of a selection of scores."""

    selection: Selection
    tools: list[ReportedTool]
    tools_left_out: int
    spellings_left_out: int
    reading: Reading | None = None  # None: no model was asked

    @property
    def has_failed(self) -> bool:
        """Whether models were asked to read analyses and read none of them."""
        return self.reading is not None and bool(self.reading.left_out) and not self.reading.findings


async def make_report(database: Database, selection: Selection, sort: ToolSort, limit: int) -> ToolReport:
    """
    Build the report from the ledger and the reasons in the scores.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    ledger = await read_ledger(database, selection, sort, limit)
    named = [(s.name, n) for n, entry in enumerate(ledger.entries) for s in entry.spellings]
    arguments = (*selection.arguments, [name for name, _ in named], [n for _, n in named], REASONS_PER_TOOL)

    rows = await database.once(lambda c: c.fetch(database.sql(REASONS), *arguments))
    reasons: defaultdict[int, list[Reason]] = defaultdict(list)
    for tool, score_id, session_id, total, rationale, completed_at in rows:
        reasons[tool].append(Reason(score_id, session_id, total, clipped(rationale), completed_at))
    tools = [ReportedTool(entry, reasons[n]) for n, entry in enumerate(ledger.entries)]
    return ToolReport(selection, tools, ledger.tools_left_out, ledger.spellings_left_out)


def markdown(report: ToolReport) -> str:
    """Render the report as Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - Markdown, in which `plain` escapes
        loader=PackageLoader(__package__), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "plain": plain,
        "clipped": clipped,
        "chain": _chain,
        "day": lambda at: f"{at.astimezone(UTC):%Y-%m-%d}",
    }
    since = report.selection.since
    return environment.get_template("report.md.jinja").render(
        report=report,
        since=f"{since.astimezone(UTC):%Y-%m-%d %H:%M}" if since else None,
        headings=HEADINGS,
        demand_in_words=demand_in_words,
        left_out=left_out_in_words(report),
        analyses=_analyses,
        most_chains=MOST_LEFT_OUT,
        most_needs=MOST_NEEDS,
        quotes_per_need=QUOTES_PER_NEED,
    )


def left_out_in_words(report: ToolReport) -> list[str]:
    """Lines for a terminal: the analyses of each chain that no model read, why, and what would help."""
    left_out: Sequence[LeftOut] = report.reading.left_out if report.reading is not None else []
    lines = [
        one_line(f"{_chain(left.chain_id)}: {_analyses(left.notes)} not read: {left.why}")
        for left in left_out
    ]
    if len(lines) > MOST_LEFT_OUT:
        lines[MOST_LEFT_OUT:] = [f"and {len(lines) - MOST_LEFT_OUT:,} more such lines"]
    if left_out and report.selection.chain is None:
        lines.append("--chain NAME reads the analyses of one chain alone, if it has a judge")
    return lines


def _chain(chain_id: str | None) -> str:
    return f"chain {chain_id}" if chain_id else "scores without a chain"


def _analyses(number: int) -> str:
    return f"{number:,} {'analysis' if number == 1 else 'analyses'}"


def document_of(report: ToolReport) -> Mapping[str, Any]:
    """The report as a mapping, to be encoded as JSON."""
    return {
        "chain": report.selection.chain,
        "since": report.selection.since,
        "tools": [
            {f.name: getattr(tool.entry, f.name) for f in fields(tool.entry)} | {"reasons": tool.reasons}
            for tool in report.tools
        ],
        "tools_left_out": report.tools_left_out,
        "spellings_left_out": report.spellings_left_out,
        "reading": report.reading,
    }


def plain(text: str) -> str:
    """
    Escape untrusted text for Markdown: one line, without headings, lists, links or pictures.

    A word that renderers turn into a link becomes code: escaping is not enough where links are made after
    rendering.
    """
    return _BEGINS_BLOCK.sub(r"\1\\", " ".join(map(_plain_word, one_line(text).split(" "))))


def _plain_word(word: str) -> str:
    if _LINKED.search(word):
        return "`" + word.replace("`", "'") + "`"
    return _MARKS.sub(r"\\\g<0>", word)
