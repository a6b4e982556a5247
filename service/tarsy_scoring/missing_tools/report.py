"""The missing-tools report: the ledger with the judges' own reasons, each with the score it comes from."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.missing_tools.decisions import ToolStateName
from tarsy_scoring.missing_tools.ledger import Ledger, read_ledger
from tarsy_scoring.missing_tools.reasons import Reason, clipped, read_reasons
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.text import one_line

# Characters with a meaning in Markdown. An underscore within a word, as in most tool names, has none.
_MARKS = re.compile(r"[\\`*\[\]<>#|!~&$]|(?<![^\W_])_|_(?![^\W_])")
# Line beginnings that make a list, a rule or a heading.
_BEGINS_BLOCK = re.compile(r"\A(?:(?=[-+=])|([0-9]{1,9})(?=[.)]))")
# Text that renderers turn into links: addresses, people (`@ada`), issue and merge request numbers.
_LINKED = re.compile(r"://|www\.|@|[#!][0-9]", re.IGNORECASE)

HEADINGS: Mapping[ToolStateName | Literal["once"], str] = {
    "open": "To be built",
    "planned": "Planned",
    "built": "Built",
    "once": "Named by one session",
}


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The missing tools in selected scores; `reasons` in the order in which the ledger has tools."""

    selection: Selection
    ledger: Ledger
    reasons: list[list[Reason]]


async def make_report(database: Database, selection: Selection, limit: int) -> ToolReport:
    """Build the report. Raises: DatabaseAway."""
    ledger = await read_ledger(database, selection, limit)
    return ToolReport(selection, ledger, await read_reasons(database, selection, ledger.tools))


def document_of(report: ToolReport) -> Mapping[str, Any]:
    """The report as a mapping, to be encoded as JSON."""
    tools = zip(report.ledger.tools, report.reasons, strict=True)
    return {
        "chain": report.selection.chain,
        "since": report.selection.since,
        "tools": [asdict(tool) | {"reasons": reasons} for tool, reasons in tools],
        "tools_left_out": report.ledger.tools_left_out,
        "spellings_left_out": report.ledger.spellings_left_out,
    }


def markdown(report: ToolReport) -> str:
    """Render the report as Markdown."""
    since = report.selection.since
    return render_markdown(
        "missing_tools",
        "report.md.jinja",
        report=report,
        tools=list(zip(report.ledger.tools, report.reasons, strict=True)),
        since=f"{since.astimezone(UTC):%Y-%m-%d %H:%M}" if since else None,
        headings=HEADINGS,
    )


def render_markdown(room: str, template: str, **values: Any) -> str:
    """Render a room's template; `plain` escapes texts from models in it."""
    environment = Environment(  # noqa: S701 - Markdown, in which `plain` escapes
        loader=PackageLoader(f"tarsy_scoring.{room}"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    day = {"day": lambda at: f"{at.astimezone(UTC):%Y-%m-%d}"}
    environment.filters |= {"plain": plain, "clipped": clipped} | day
    return environment.get_template(template).render(values)


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
