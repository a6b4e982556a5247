"""
The report for those who build tools: the ledger with the judges' own reasons, each with the score that it stands in.
"""

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
MOST_LEFT_OUT = 20  # chains that are told by name

# What means something in Markdown. An underscore within a word does not, and names of tools are full of them.
_MARKS = re.compile(r"[\\`*\[\]<>#|!~&$]|(?<![^\W_])_|_(?![^\W_])")
# What makes a list, a rule or the line under a heading of a line that begins with it.
_BEGINS_BLOCK = re.compile(r"\A(?:(?=[-+=])|([0-9]{1,9})(?=[.)]))")
# What a renderer makes a link of by itself: addresses, people (`@ada`), numbers of issues and merge requests.
_LINKED = re.compile(r"://|www\.|@|[#!][0-9]", re.IGNORECASE)

# Reasons for tools ($5 spellings, $6 the tool of each): of each tool those whose scores lost most, at most $7.
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
    "confirmed": "Built, and no longer asked for",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a judge missed a tool, and in which score it says so."""

    score_id: UUID
    session_id: str
    total_score: int | None
    reason: str
    scored_at: datetime


@dataclass(frozen=True, slots=True)
class ReportedTool:
    """A tool of the ledger, with reasons out of the scores that lost most."""

    entry: LedgerEntry
    reasons: list[Reason]


@dataclass(frozen=True, slots=True)
class ToolReport:
    """What to build next, out of the scores of a selection."""

    selection: Selection
    tools: list[ReportedTool]
    tools_left_out: int
    spellings_left_out: int
    reading: Reading | None = None  # None: no model was asked

    @property
    def has_failed(self) -> bool:
        """Models were asked for, and nothing of what there is could be read."""
        return self.reading is not None and bool(self.reading.left_out) and not self.reading.findings


async def make_report(database: Database, selection: Selection, sort: ToolSort, limit: int) -> ToolReport:
    """
    The report. What it says of a tool stands in the scores that it names.

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
    """A text of a model in one line, without what cannot be seen, and not longer than `LONGEST_REASON`."""
    return cut(_line(text), LONGEST_REASON)


def markdown(report: ToolReport) -> str:
    """The report as a document for people."""
    lines = ["# Missing tools", "", _about(report)]
    for state, heading in HEADINGS.items():
        if tools := [tool for tool in report.tools if tool.entry.state == state]:
            lines += ["", f"## {heading}"]
            for tool in tools:
                lines += ["", *_told(tool)]
    if not report.tools:
        lines += ["", "No judge missed a tool."]
    if report.reading is not None:
        lines += ["", *_read(report.reading, left_out_in_words(report))]
    return "\n".join(lines) + "\n"


def left_out_in_words(report: ToolReport) -> list[str]:
    """What no model read of which chain, a line each, as text for a terminal; and how to have it read."""
    left_out: Sequence[LeftOut] = report.reading.left_out if report.reading is not None else []
    lines = [_line(f"{_chain(left.chain_id)}: {_analyses(left.notes)} not read: {left.why}") for left in left_out]
    if len(lines) > MOST_LEFT_OUT:
        lines[MOST_LEFT_OUT:] = [f"and {len(lines) - MOST_LEFT_OUT:,} more such lines"]
    if left_out and report.selection.chain is None:
        lines.append("--chain NAME has the analyses of one chain read alone, where it has a judge")
    return lines


def _read(reading: Reading, left_out: Sequence[str]) -> Iterable[str]:
    """What models put together out of what judges wrote."""
    cost = "" if reading.cost_usd is None else f" It cost {reading.cost_usd:.4f} USD."
    yield "## What judges ask for, put together by a model"
    yield ""
    if not reading.findings:
        yield f"{'No analysis was read.' if reading.left_out else 'There is no analysis to read.'}{cost}"
    elif any(findings.needs for findings in reading.findings):
        yield f"Every quote was found in the score that it names.{cost}"
    else:
        yield f"No quote was found.{cost}"
    if len(reading.findings) > 1:
        yield "Each chain is read by its own provider, and what different providers found was not compared."
    if left_out:
        yield ""
        yield from (f"- {plain(line)}" for line in left_out)
    for findings in reading.findings:
        yield ""
        yield from _found(findings)


def _found(findings: Findings) -> Iterable[str]:
    """What one provider found."""
    chains = [plain(_chain(chain_id)) for chain_id in findings.chains[:MOST_LEFT_OUT]]
    more = len(findings.chains) - len(chains)
    yield f"### Read by {plain(findings.provider)}"
    yield ""
    yield (
        f"{_analyses(findings.notes_read)} of {', '.join(chains)}{f' and {more:,} more' if more else ''}. "
        f"Quotes that were found in no score, and are left out: {findings.quotes_dropped:,}."
    )
    if findings.needs_dropped:
        yield (
            f"Of each answer the {MOST_NEEDS} needs that most scores ask for are kept; {findings.needs_dropped:,} more "
            "are left out."
        )
    if not findings.is_put_together:
        why = f" ({plain(findings.stopped_by)})" if findings.stopped_by else ""
        yield f"Not all needs were compared with each other{why}: the same one may be there twice."
    if not findings.needs:
        yield "They ask for nothing that a quote could be found for."
    for need in findings.needs:
        yield ""
        yield from _told_need(need)


def _told_need(need: Need) -> Iterable[str]:
    yield f"#### {plain(need.title)}"
    yield ""
    yield f"{plain(need.what)} Asked for by {need.scores:,} {_many(need.scores, 'score')}:"
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
        f"From the latest score of each session{among}{when}. Points lost are 100 less the total of each score that "
        f"asked for the tool; a score that asks for three tools counts whole for each.{left}"
    )


def _told(tool: ReportedTool) -> Iterable[str]:
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
        yield "Judged sessions have called a tool of that name: it may lack a description, a permission or a place."
    if entry.said is not None:
        state, since = entry.said.state.capitalize(), entry.said.since.astimezone(UTC)
        by = f"{state} since {since:%Y-%m-%d}, says {plain(entry.said.said_by)}"
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
    """What was measured and what follows from it, in two or three sentences."""
    told = (
        f"Without it {demand.asked_without:,} of {demand.sessions_without:,} sessions asked for it, with it "
        f"{demand.asked_with:,} of {demand.sessions_with:,}, where {demand.expected:,.1f} were to be expected."
    )
    sure = f"{CONFIDENCE:.0%} sure"
    if has_other_judge:
        told += " No judge has judged on both sides: the change may be the judge's, and says nothing about the tool."
    elif demand.verdict == "confirmed":
        told += f" So less than a quarter of the demand is left ({sure})."
    elif demand.verdict == "still_missed":
        told += f" So more than half of the demand is left ({sure}): the reasons in its scores say what is lacking."
    elif demand.sessions_needed is not None:
        told += f" {demand.sessions_needed:,} more sessions that do not ask for it would confirm it."
    else:
        told += " Nobody has asked for it before, so nothing can be concluded."
    return told


def document_of(report: ToolReport) -> Mapping[str, Any]:
    """The report for programs."""
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
    Text of somebody else that is nothing but text in a document: in one line, no heading, list, link or picture.

    A word that would be made a link by itself is put as code: a mark in it is not enough where links are made of what
    was rendered.
    """
    return _BEGINS_BLOCK.sub(r"\1\\", " ".join(map(_plain_word, _line(text).split(" "))))


def _plain_word(word: str) -> str:
    if _LINKED.search(word):
        return "`" + word.replace("`", "'") + "`"
    return _MARKS.sub(r"\\\g<0>", word)


def _line(text: str) -> str:
    """Without what cannot be seen and what moves a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in without_invisible(text)).split())


def _many(number: int, what: str) -> str:
    return what if number == 1 else f"{what}s"
