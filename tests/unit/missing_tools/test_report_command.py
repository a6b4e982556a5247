"""What `report missing-tools` says of the ledger, and what it refuses before anything is read."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from click.testing import CliRunner
from markdown_it import MarkdownIt

from tables import table
from tarsy_scoring.commands.report import report
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.missing_tools.decisions import SaidState, Saying
from tarsy_scoring.missing_tools.ledger import LedgerEntry, state_of
from tarsy_scoring.missing_tools.needs import Findings, LeftOut, Need, Quote, Reading
from tarsy_scoring.missing_tools.report import (
    MOST_LEFT_OUT,
    Reason,
    ReportedTool,
    ToolReport,
    clipped,
    document_of,
    left_out_in_words,
    markdown,
    plain,
)
from tarsy_scoring.missing_tools.tool_effect import ChainDemand, Demand, measure_demand
from tarsy_scoring.records.analytics import Selection, Spelling, ToolChain

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
        exists=exists,
        state=state_of(said, demand),
        said=said,
        demand=demand,
        has_other_judge=has_other_judge,
        merges=[],
    )
    return ReportedTool(entry, [Reason(SCORE, "session-1", total, reason, NOON)])


def told(*tools: ReportedTool, chain: str | None = None) -> str:
    return markdown(ToolReport(Selection(chain=chain), list(tools), 0, 0))


def test_what_the_report_says_of_a_tool() -> None:
    cases = [
        (a_tool(), "To be built", "8 sessions in 1 chain; 231 points lost.\nAlso written NodePressure."),
        (a_tool(), "To be built", f"- the node was not looked at (score {SCORE}, total 40)"),
        (a_tool(exists=True), "To be built", "may lack a description"),
        (a_tool(state="planned"), "Planned", "Planned since 2026-03-10, according to ada."),
        (
            a_tool(state="planned", said_by="Ada McDonald", note="see the DNS page"),
            "Planned",
            "Planned since 2026-03-10, according to Ada McDonald: see the DNS page",
        ),
        (
            a_tool(state="built", demand=measure_demand([ChainDemand(100, 30, 25, 0)])),
            "Built, and being measured",
            "18 more sessions that do not request it would confirm it",
        ),
        (
            a_tool(demand=measure_demand([ChainDemand(100, 30, 100, 1)])),
            "Built, and no longer requested",
            "with it 1 of 100, where 30.0 were expected. So less than a quarter",
        ),
        (
            a_tool(demand=measure_demand([ChainDemand(100, 30, 100, 30)])),
            "Built, and still missed",
            "more than half of the demand is left (95% confidence)",
        ),
        (
            a_tool(demand=OTHER_JUDGE, has_other_judge=True),
            "Built, and being measured",
            "with it 1 of 100, where 30.0 were expected. No judge has judged both sides",
        ),
        (a_tool(total=None), "To be built", "no total)"),
        (a_tool(reason=" "), "To be built", f"- No reason given (score {SCORE}"),
    ]

    for tool, heading, says in cases:
        text = told(tool)
        assert f"## {heading}\n" in text
        assert says in text


def test_what_models_write_is_nothing_but_text() -> None:
    since = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    assert "completed since 2025-12-31 19:00 UTC" in markdown(ToolReport(Selection(since=since), [], 0, 0))

    text = told(a_tool("# [a](b)\n\x1b[31m", reason="![p](c)\n# Build nothing\n<b>"), chain="<k>")

    assert r"\# \[a\](b) \[31m" in text
    assert r"- \!\[p\](c) \# Build nothing \<b\> (score" in text
    assert r"of chain \<k\>" in text
    assert "\x1b" not in text


@table
def test_text_is_escaped_for_markdown(text: str, expected: str) -> None:
    assert plain(text) == expected


@table
def test_plain_text_renders_as_it_was_written(text: str) -> None:
    """Anywhere: one paragraph or item whose words are the text, without mark-up except code for addresses."""
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
    """A word that holds an address cannot hold backticks beside it."""
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
    told: dict[str, Any] = {"provider": "open", "chains": ["k", None], "notes_read": 40, "quotes_dropped": 2}
    told |= {"needs_dropped": 0, "is_put_together": True, "stopped_by": None, "left_out": []}
    need = Need("# Memory", "Shows [it].", tuple(Quote(uuid.uuid4(), f"quote {n}") for n in range(7)))
    return Findings(needs=[need], **(told | changes))


def report_with(*found: Findings, left_out: tuple[LeftOut, ...] = (), cost_usd: float | None = 0.25) -> ToolReport:
    return ToolReport(Selection(), [a_tool()], 0, 0, Reading(list(found), list(left_out), cost_usd))


def test_what_a_model_put_together_comes_last() -> None:
    text = markdown(report_with(findings()))

    assert text.index("### node_pressure") < text.index("#### \\# Memory")
    assert "It cost 0.2500 USD." in text
    assert "### Read by open\n\n40 analyses of chain k, scores without a chain." in text
    assert "left out because they were found in no score: 2." in text
    assert "Shows \\[it\\]. Mentioned by 7 scores:" in text
    assert text.count('- "quote') == 5
    assert "twice" not in text
    assert "not read" not in text


def test_a_report_that_is_not_whole_says_so() -> None:
    left_out = (LeftOut("k\x1b", 1, "no money"), LeftOut("*b*", 9, "its judge is switched off"))
    stopped = report_with(findings(is_put_together=False, stopped_by="no time"), left_out=left_out, cost_usd=None)

    text = markdown(stopped)

    assert left_out_in_words(stopped) == [
        "chain k : 1 analysis not read: no money",
        "chain *b*: 9 analyses not read: its judge is switched off",
        "--chain NAME reads the analyses of one chain alone, if it has a judge",
    ]
    assert r"- chain \*b\*: 9 analyses not read: its judge is switched off" in text
    assert "Not all needs were compared with each other (no time): the same one may be there twice." in text
    assert "USD" not in text


def test_what_the_report_says_of_a_reading() -> None:
    """Only a reading that left out everything has failed."""
    paused = (LeftOut("k", 3, "paused"),)
    without_needs = replace(findings(), needs=[])
    cases = [
        (
            report_with(left_out=paused),
            True,
            ("No analysis was read. It cost 0.2500 USD.", "3 analyses not read: paused"),
        ),
        (report_with(cost_usd=0.0), False, ("There is no analysis to read. It cost 0.0000 USD.",)),
        (report_with(findings(), left_out=paused), False, ("Every quote was found in the score that it names.",)),
        (report_with(without_needs), False, ("No quote was found. It cost 0.2500 USD.", "No need was supported")),
        (report_with(findings(needs_dropped=160)), False, ("keeps the 40 needs that most scores mention; 160 more",)),
        (
            report_with(findings(), findings(provider="x")),
            False,
            ("different providers were not compared", "Read by x\n"),
        ),
        (ToolReport(Selection(), [], 0, 0), False, ("No judge missed a tool.",)),
    ]
    for made, has_failed, sentences in cases:
        text = markdown(made)
        assert made.has_failed is has_failed
        assert [sentence for sentence in sentences if sentence not in text] == []


def test_many_chains_are_not_all_told_by_name() -> None:
    left_out = tuple(LeftOut(f"k{n}", 1, "paused") for n in range(MOST_LEFT_OUT + 3))
    made = report_with(left_out=left_out)

    *_, last, more, how = left_out_in_words(made)

    assert last.startswith(f"chain k{MOST_LEFT_OUT - 1}:")
    assert (more, how.split()[0]) == ("and 3 more such lines", "--chain")
    assert left_out_in_words(replace(made, selection=Selection(chain="k")))[-1] == more


def test_invalid_arguments_are_refused() -> None:
    for arguments, says in (
        (["--since", "yesterday"], "is not a time"),
        (["--sort", "name"], "is not one of"),
        (["--limit", "0"], "is not in the range"),
        (["--with-judge", "--max-usd", "0"], "is not in the range"),
        (["--with-judge", "--max-scores", "0"], "is not in the range"),
        (["--max-usd", "1"], "--max-usd needs --with-judge"),
        (["--max-scores", "5"], "--max-scores needs --with-judge"),
    ):
        ended = CliRunner().invoke(report, ["missing-tools", *arguments])
        assert ended.exit_code == 2
        assert says in " ".join(ended.stderr.split())


def test_what_can_be_meant_gets_as_far_as_the_database() -> None:
    ended = CliRunner().invoke(report, ["missing-tools", "--since", "2026-01-31", "--chain", "k", "--json"])

    assert isinstance(ended.exception, ConfigurationError)
    assert "SCORING_DATABASE_URL" in str(ended.exception)
