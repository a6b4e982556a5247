"""The missing-tools report: the ledger with the judges' own reasons, each with the score it comes from."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tarsy_scoring.missing_tools.ledger import LedgerEntry, State, read_ledger
from tarsy_scoring.missing_tools.needs import MOST_NEEDS, QUOTES_PER_NEED, Findings, LeftOut, Need, Reading, cut
from tarsy_scoring.missing_tools.tool_effect import CONFIDENCE, Demand
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.records.analytics import SELECTED, Selection, ToolSort
from tarsy_scoring.timeline.text import without_invisible

REASONS_PER_TOOL = 3
LONGEST_REASON = 300
MOST_LEFT_OUT = 20  # chains listed by name

# Characters with a meaning in Markdown. An underscore within a word has none, and tool names are full of
# them.
_MARKS = re.compile(r"[\\`*\[\]<>#|!~&$]|(?<![^\W_])_|_(?![^\W_])")
# Line beginnings that make a list, a rule or a heading.
_BEGINS_BLOCK = re.compile(r"\A(?:(?=[-+=])|([0-9]{1,9})(?=[.)]))")
# Text that renderers turn into links: addresses, people (`@ada`), numbers of issues and merge requests.
_LINKED = re.compile(r"://|www\.|@|[#!][0-9]", re.IGNORECASE)

# Reasons for tools ($5 spellings, $6 the tool of each): for each tool at most $7, from the scores that lost
# most.
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
class Reason:
    """A judge's reason for missing a tool, and the score it comes from."""

    score_id: UUID
    session_id: str
    total_score: int | None
    reason: str
    scored_at: datetime


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
        """Whether models were to read analyses and could read none of them."""
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

    async def work(connection: Connection) -> list[Any]:
        return await connection.fetch(database.sql(REASONS), *arguments)

    reasons: defaultdict[int, list[Reason]] = defaultdict(list)
    for row in await database.once(work):
        reason = Reason(
            row["score_id"], row["session_id"], row["total_score"], clipped(row["rationale"]), row["completed_at"]
        )
        reasons[row["tool"]].append(reason)
    tools = [ReportedTool(entry, reasons[n]) for n, entry in enumerate(ledger.entries)]
    return ToolReport(selection, tools, ledger.tools_left_out, ledger.spellings_left_out)


def clipped(text: str) -> str:
    """A model's text in one line of at most `LONGEST_REASON` characters, without invisible characters."""
    return cut(_line(text), LONGEST_REASON)


def markdown(report: ToolReport) -> str:
    """The report as Markdown."""
    lines = ["# Missing tools", "", _about(report)]
    for state, heading in HEADINGS.items():
        if tools := [tool for tool in report.tools if tool.entry.state == state]:
            lines += ["", f"## {heading}"]
            for tool in tools:
                lines += ["", *_tool_lines(tool)]
    if not report.tools:
        lines += ["", "No judge missed a tool."]
    if report.reading is not None:
        lines += ["", *_reading_lines(report.reading, left_out_in_words(report))]
    return "\n".join(lines) + "\n"


def left_out_in_words(report: ToolReport) -> list[str]:
    """Per chain, the analyses that no model read and why, as text for a terminal; and how to get them read."""
    left_out: Sequence[LeftOut] = report.reading.left_out if report.reading is not None else []
    lines = [_line(f"{_chain(left.chain_id)}: {_analyses(left.notes)} not read: {left.why}") for left in left_out]
    if len(lines) > MOST_LEFT_OUT:
        lines[MOST_LEFT_OUT:] = [f"and {len(lines) - MOST_LEFT_OUT:,} more such lines"]
    if left_out and report.selection.chain is None:
        lines.append("--chain NAME reads the analyses of one chain alone, if it has a judge")
    return lines


def _reading_lines(reading: Reading, left_out: Sequence[str]) -> Iterable[str]:
    """The needs that models found in the judges' free text."""
    cost = "" if reading.cost_usd is None else f" It cost {reading.cost_usd:.4f} USD."
    yield "## Needs that a model found in the judges' analyses"
    yield ""
    if not reading.findings:
        yield f"{'No analysis was read.' if reading.left_out else 'There is no analysis to read.'}{cost}"
    elif any(findings.needs for findings in reading.findings):
        yield f"Every quote was found in the score that it names.{cost}"
    else:
        yield f"No quote was found.{cost}"
    if len(reading.findings) > 1:
        yield "Each chain is read by its own provider; the needs found by different providers were not compared."
    if left_out:
        yield ""
        yield from (f"- {plain(line)}" for line in left_out)
    for findings in reading.findings:
        yield ""
        yield from _finding_lines(findings)


def _finding_lines(findings: Findings) -> Iterable[str]:
    """The needs that one provider found."""
    chains = [plain(_chain(chain_id)) for chain_id in findings.chains[:MOST_LEFT_OUT]]
    more = len(findings.chains) - len(chains)
    yield f"### Read by {plain(findings.provider)}"
    yield ""
    yield (
        f"{_analyses(findings.notes_read)} of {', '.join(chains)}{f' and {more:,} more' if more else ''}. "
        f"Quotes left out because they were found in no score: {findings.quotes_dropped:,}."
    )
    if findings.needs_dropped:
        yield (
            f"Each answer keeps the {MOST_NEEDS} needs that most scores mention; {findings.needs_dropped:,} more are "
            "left out."
        )
    if not findings.is_put_together:
        why = f" ({plain(findings.stopped_by)})" if findings.stopped_by else ""
        yield f"Not all needs were compared with each other{why}: the same one may be there twice."
    if not findings.needs:
        yield "No need was supported by a quote."
    for need in findings.needs:
        yield ""
        yield from _need_lines(need)


def _need_lines(need: Need) -> Iterable[str]:
    yield f"#### {plain(need.title)}"
    yield ""
    yield f"{plain(need.what)} Mentioned by {need.scores:,} {_many(need.scores, 'score')}:"
    yield ""
    for quote in need.quotes[:QUOTES_PER_NEED]:
        yield f'- "{plain(clipped(quote.quote))}" (score {quote.score_id})'


def _chain(chain_id: str | None) -> str:
    return f"chain {chain_id}" if chain_id else "scores without a chain"


def _analyses(number: int) -> str:
    return f"{number:,} {'analysis' if number == 1 else 'analyses'}"


def _about(report: ToolReport) -> str:
    of, since = report.selection.chain, report.selection.since
    among = f" of chain {plain(of)}" if of else ""
    when = f" completed since {since.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if since else ""
    left = f" {report.tools_left_out} less wanted tools are left out." if report.tools_left_out else ""
    return (
        f"From the latest score of each session{among}{when}. Points lost are 100 minus the total of each score that "
        f"requested the tool; a score that requests three tools counts in full for each.{left}"
    )


def _tool_lines(tool: ReportedTool) -> Iterable[str]:
    entry = tool.entry
    yield f"### {plain(entry.tool_name)}"
    yield ""
    yield (
        f"{entry.sessions:,} {_many(entry.sessions, 'session')} in {entry.chains} {_many(entry.chains, 'chain')}; "
        f"{entry.points_lost:,} {_many(entry.points_lost, 'point')} lost."
    )
    if entry.demand is not None:
        yield demand_in_words(entry.demand, has_other_judge=entry.has_other_judge)
    elif entry.exists:
        yield "Judged sessions have called a tool of that name: it may lack a description or a permission."
    if entry.said is not None:
        state, since = entry.said.state.capitalize(), entry.said.since.astimezone(UTC)
        by = f"{state} since {since:%Y-%m-%d}, according to {plain(entry.said.said_by)}"
        yield f"{by}: {plain(clipped(entry.said.note))}" if entry.said.note else f"{by}."
    names = [plain(s.name) for s in entry.spellings if s.name != entry.tool_name]
    if names:
        yield f"Also written {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}."
    if tool.reasons:
        yield ""
        for reason in tool.reasons:
            total = "no total" if reason.total_score is None else f"total {reason.total_score}"
            yield f"- {plain(reason.reason) or 'No reason given'} (score {reason.score_id}, {total})"


def demand_in_words(demand: Demand, *, has_other_judge: bool) -> str:
    """The measured demand and the verdict, in two or three sentences."""
    text = (
        f"Without it {demand.asked_without:,} of {demand.sessions_without:,} sessions requested it, with it "
        f"{demand.asked_with:,} of {demand.sessions_with:,}, where {demand.expected:,.1f} were expected."
    )
    confidence = f"{CONFIDENCE:.0%} confidence"
    if has_other_judge:
        text += " No judge has judged both sides: the change may be the judge's and shows nothing about the tool."
    elif demand.verdict == "confirmed":
        text += f" So less than a quarter of the demand is left ({confidence})."
    elif demand.verdict == "still_missed":
        text += (
            f" So more than half of the demand is left ({confidence}): the reasons in its scores show what is missing."
        )
    elif demand.sessions_needed is not None:
        text += f" {demand.sessions_needed:,} more sessions that do not request it would confirm it."
    else:
        text += " No session requested it before, so nothing can be concluded."
    return text


def document_of(report: ToolReport) -> Mapping[str, Any]:
    """The report for JSON."""
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
    return _BEGINS_BLOCK.sub(r"\1\\", " ".join(map(_plain_word, _line(text).split(" "))))


def _plain_word(word: str) -> str:
    if _LINKED.search(word):
        return "`" + word.replace("`", "'") + "`"
    return _MARKS.sub(r"\\\g<0>", word)


def _line(text: str) -> str:
    """One line without invisible characters or terminal control sequences."""
    return " ".join("".join(c if c.isprintable() else " " for c in without_invisible(text)).split())


def _many(number: int, what: str) -> str:
    return what if number == 1 else f"{what}s"
