"""The texts of `report missing-tools`, and the arguments that it refuses before it reads anything."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from markdown_it import MarkdownIt

from tables import table
from tarsy_scoring.analytics.analytics import Selection, Spelling, ToolChain
from tarsy_scoring.commands.report import report
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.missing_tools.decisions import SaidState, Saying
from tarsy_scoring.missing_tools.ledger import LedgerEntry, state_of
from tarsy_scoring.missing_tools.needs import Findings, LeftOut, Need, Quote, Reading
from tarsy_scoring.missing_tools.reasons import Reason, clipped
from tarsy_scoring.missing_tools.report import (
    MOST_LEFT_OUT,
    ReportedTool,
    ToolReport,
    document_of,
    left_out_in_words,
    markdown,
    plain,
)
from tarsy_scoring.missing_tools.tool_effect import ChainDemand, Demand, measure_demand

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
SCORE = uuid.UUID("6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11")
OTHER_JUDGE = replace(measure_demand([ChainDemand(100, 30, 100, 1)]), verdict="undecided", sessions_needed=None)


def a_tool(
    name: str = "node_pressure",
    *,
    state: SaidState | None = None,
    demand: Demand | None = None,
    reason: str = "the node was not looked at",
    total: int | None = 40,
    has_other_judge: bool = False,
    exists: bool = False,
    said_by: str = "ada",
    note: str | None = None,
) -> ReportedTool:
    said = None if state is None else Saying(name, state, NOON, said_by, NOON, note)
    entry = LedgerEntry(
        name,
        [Spelling(name, 7), Spelling("NodePressure", 1)],
        sessions=8,
        chains=1,
        by_chain=[ToolChain("k", 8)],
        points_lost=231,
        judges=1,
        exists=exists,
        state=state_of(said, demand),
        said=said,
        demand=demand,
        has_other_judge=has_other_judge,
        merges=[],
    )
    return ReportedTool(entry, [Reason(SCORE, "session-1", total, reason, NOON)])


def report_text(*tools: ReportedTool, chain: str | None = None) -> str:
    return markdown(ToolReport(Selection(chain=chain), list(tools), 0, 0))


def test_the_report_equals_the_file_beside_this_test() -> None:
    """Tools by state, those built in vain first; then the findings of models, and chains left out."""
    tools = [
        a_tool("wish"),
        a_tool("described_badly", exists=True, total=None),
        a_tool("planned", state="planned", said_by="Ada McDonald", note="see the DNS page", reason=" "),
        a_tool("fresh", state="built", demand=measure_demand([ChainDemand(100, 30, 25, 0)])),
        a_tool("done", demand=measure_demand([ChainDemand(100, 30, 100, 1)])),
        a_tool("vain", demand=measure_demand([ChainDemand(100, 30, 100, 30)])),
        a_tool("other", demand=OTHER_JUDGE, has_other_judge=True),
    ]
    left_out = [LeftOut("k\x1b", 1, "no money"), LeftOut("*b*", 9, "its judge is switched off")]
    inside = findings(provider="inside", needs=[], needs_dropped=160, is_put_together=False, stopped_by="no time")
    since = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    reading = Reading([findings(), inside], left_out, 0.25)

    text = markdown(ToolReport(Selection(chain="k", since=since), tools, 4, 0, reading))

    assert text == Path(__file__).with_name("report.md").read_text(encoding="utf-8")


def test_the_report_names_its_period() -> None:
    """Without a beginning it covers all time, unlike the page."""
    since = ToolReport(Selection(since=NOON), [], 0, 0)

    assert "each session of all time. Points lost" in report_text()
    assert "each session completed since 2026-03-10 12:00 UTC. Points lost" in markdown(since)


def test_the_report_says_what_a_reading_found_and_cost() -> None:
    """Only a reading that left out every chain has failed."""
    paused = [LeftOut("k", 3, "paused")]
    cases = [
        (Reading([], paused, 0.25), True, "No analysis was read. It cost 0.2500 USD."),
        (Reading([], [], None), False, "There is no analysis to read.\n"),
        (Reading([findings(needs=[])], paused, 0.0), False, "No quote was found. It cost 0.0000 USD."),
        (None, False, "No judge missed a tool."),
    ]
    for reading, has_failed, sentence in cases:
        made = ToolReport(Selection(), [], 0, 0, reading)
        assert made.has_failed is has_failed
        assert sentence in markdown(made)


def test_texts_of_models_are_escaped() -> None:
    text = report_text(a_tool("# [a](b)\n\x1b[31m", reason="![p](c)\n# Build nothing\n<b>"), chain="<k>")

    assert r"\# \[a\](b) \[31m" in text
    assert r"- \!\[p\](c) \# Build nothing \<b\> (score" in text
    assert r"of chain \<k\>" in text
    assert "\x1b" not in text


@table
def test_text_is_escaped_for_markdown(text: str, expected: str) -> None:
    assert plain(text) == expected


@table
def test_plain_text_renders_as_it_was_written(text: str) -> None:
    """It is one paragraph or item with the words of the text, without mark-up except code for addresses."""
    for before in ("", "A line of ours.\n", "- "):
        assert_rendered(text, before)


def assert_rendered(text: str, before: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    ours = {"paragraph_open", "paragraph_close", "inline"}
    ours |= (
        {f"{one}_{end}" for one in ("bullet_list", "list_item") for end in ("open", "close")}
        if before == "- "
        else set()
    )

    tokens = parser.parse(before + plain(text))

    [inline] = [token for token in tokens if token.type == "inline"]
    children = inline.children or []
    assert {token.type for token in tokens} == ours
    assert sum(token.type == "list_item_open" for token in tokens) == (before == "- ")
    assert {token.type for token in children} <= {"text", "code_inline", "softbreak"}
    shown = "".join("\n" if token.type == "softbreak" else token.content for token in children)
    assert shown == before.removeprefix("- ") + shown_of(text)
    assert not any("//" in token.content for token in children if token.type == "text")


def shown_of(text: str) -> str:
    """The text as rendered: in a word with an address, backticks become apostrophes."""
    return " ".join(word.replace("`", "'") if "://" in word else word for word in text.split(" "))


def test_a_long_reason_is_cut() -> None:
    assert len(clipped("word " * 200)) <= 300
    assert clipped("word " * 200).endswith("…")
    assert clipped("a\n b") == "a b"


def test_the_document_has_counts_beside_the_state() -> None:
    document = document_of(ToolReport(Selection(chain="k"), [a_tool(state="planned")], 3, 0))

    [tool] = document["tools"]
    assert (document["chain"], document["tools_left_out"]) == ("k", 3)
    assert (tool["tool_name"], tool["state"], tool["reasons"][0].score_id) == ("node_pressure", "planned", SCORE)


def findings(**changes: Any) -> Findings:
    need = Need("# Memory", "Shows [it].", tuple(Quote(uuid.UUID(int=n), f"quote {n}") for n in range(7)))
    return replace(Findings("open", ["k", None], [need], 40, 2), **changes)


def report_with(*found: Findings, left_out: tuple[LeftOut, ...] = (), cost_usd: float | None = 0.25) -> ToolReport:
    return ToolReport(Selection(), [a_tool()], 0, 0, Reading(list(found), list(left_out), cost_usd))


def test_many_chains_left_out_are_not_all_named() -> None:
    left_out = tuple(LeftOut(f"k{n}", 1, "paused") for n in range(MOST_LEFT_OUT + 3))
    made = report_with(left_out=left_out)

    *_, last, more, how = left_out_in_words(made)

    assert last.startswith(f"chain k{MOST_LEFT_OUT - 1}:")
    assert (more, how.split()[0]) == ("and 3 more such lines", "--chain")
    assert left_out_in_words(replace(made, selection=Selection(chain="k")))[-1] == more


@table
def test_invalid_arguments_are_refused(arguments: list[str], says: str) -> None:
    ended = CliRunner().invoke(report, ["missing-tools", *arguments])
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())


def test_valid_arguments_get_as_far_as_the_database() -> None:
    ended = CliRunner().invoke(report, ["missing-tools", "--since", "2026-01-31", "--chain", "k", "--json"])

    assert isinstance(ended.exception, ConfigurationError)
    assert "SCORING_DATABASE_URL" in str(ended.exception)
