"""The texts of `report missing-tools`, and the arguments that it refuses before it reads anything."""

import uuid
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from click.testing import CliRunner
from markdown_it import MarkdownIt

from tables import table
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.commands.report import report
from tarsy_scoring.missing_tools.decisions import ToolState, ToolStateName
from tarsy_scoring.missing_tools.ledger import Ledger, Spelling, ToolChain, WantedTool
from tarsy_scoring.missing_tools.reasons import Reason, clipped
from tarsy_scoring.missing_tools.report import ToolReport, markdown, plain

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
SCORE = uuid.UUID("6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11")
Tool = tuple[WantedTool, Reason]


def a_tool(
    name: str = "node_pressure",
    *,
    state: ToolStateName = "open",
    reason: str = "the node was not looked at",
    total: int | None = 40,
    exists: bool = False,
    said_by: str = "ada",
    note: str | None = None,
    named_once: bool = False,
) -> Tool:
    tool = WantedTool(
        name,
        [Spelling(name, 7), Spelling("NodePressure", 1)],
        sessions=8,
        chains=1,
        by_chain=[ToolChain("k", 8)],
        exists=exists,
        state=state,
        said=None if state == "open" else ToolState(name, state, NOON, said_by, NOON, note),
        merges=[],
        named_once=named_once,
    )
    return tool, Reason(SCORE, "session-1", total, reason, NOON)


def a_report(*tools: Tool, chain: str | None = None, since: datetime | None = None) -> ToolReport:
    ledger = Ledger(NOON, [tool for tool, _ in tools], 4, 0)
    return ToolReport(Selection(chain=chain, since=since), ledger, [[reason] for _, reason in tools])


def report_text(*tools: Tool, chain: str | None = None, since: datetime | None = None) -> str:
    return markdown(a_report(*tools, chain=chain, since=since))


def test_the_report_equals_the_file_beside_this_test() -> None:
    tools = [
        a_tool("wish"),
        a_tool("described_badly", exists=True, total=None),
        a_tool("planned", state="planned", said_by="Ada McDonald", note="see the DNS page", reason=" "),
        a_tool("fresh", state="built"),
    ]
    since = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5)))

    text = report_text(*tools, chain="k", since=since)

    assert text == Path(__file__).with_name("report.md").read_text(encoding="utf-8")


def test_a_tool_that_one_session_alone_names_has_a_section_at_the_end() -> None:
    text = report_text(a_tool("wish"), a_tool("planned", state="planned"), a_tool("whim", named_once=True))

    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## To be built",
        "### wish",
        "## Planned",
        "### planned",
        "## Named by one session",
        "### whim",
    ]


def test_the_report_names_its_period() -> None:
    """Without a beginning it covers all time, unlike the page."""
    assert "each session of all time. 4 less" in report_text()
    assert "each session completed since 2026-03-10 12:00 UTC. 4 less" in report_text(since=NOON)


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


@table
def test_invalid_arguments_are_refused(arguments: list[str], says: str) -> None:
    ended = CliRunner().invoke(report, ["missing-tools", *arguments])
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
