"""The outputs that docs/questions/ quotes are those that the commands print over the simulated quarter."""

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.quarter import CHAIN, CRITERIA, fill
from click.testing import CliRunner

from builders import open_scoring
from infrastructure import Postgres, fresh_database, run_apart
from tarsy_scoring.cli import cli
from tarsy_scoring.labels import labels
from tarsy_scoring.studies import anchors, findings

QUESTIONS = Path(__file__).parents[2] / "docs" / "questions"
QUOTED = re.compile(r"```console\n\$ (.+?)\n(.*?)```", re.DOTALL)
CARD = "curl -s $api/trust | jq -r '.cards[].meaning'"


def plain(text: str) -> str:
    """The text as one line with its dates replaced, because the quarter ends today."""
    return " ".join(re.sub(r"\d{4}-\d\d-\d\d( \d\d:\d\d)?", "DATE", text).split())


def quotes() -> Iterator[tuple[str, str, str]]:
    """Page, command, and each quoted piece of the command's output."""
    for page in sorted(QUESTIONS.glob("*.md")):
        for command, shown in QUOTED.findall(page.read_text("utf-8")):
            pieces = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
            yield from ((page.name, command, plain(piece)) for piece in pieces if piece.strip())


@pytest.fixture(scope="module")
def printed(postgres: Postgres, _migrated_template: str) -> Iterator[dict[str, str]]:
    """The output of each command; a command quoted with and without anchors has both outputs."""
    calls = defaultdict[str, list[str]](list)
    with fresh_database(postgres, _migrated_template) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCORING_DATABASE_URL", url)
        patch.setenv("COLUMNS", "118")

        def call(command: str) -> None:
            ended = CliRunner().invoke(cli, command.split()[1:])
            assert ended.exit_code == 0, ended.output
            calls[command].append(plain(ended.output))

        run_apart(fill(url))
        calls[CARD].append(run_apart(look(url)))
        for command in dict.fromkeys(command for _, command, _ in quotes() if command != CARD):
            call(command)
        run_apart(forget_anchors(url))
        call("tarsy-scoring compare --label guidance")
        yield {command: "\n".join(texts) for command, texts in calls.items()}


async def look(url: str) -> str:
    """Look for drift as a worker does; returns the meaning of the trust card."""
    async with open_scoring(url) as scoring:
        standing = await anchors.standing(scoring.database, scoring.inbox.policy)
        judgements = await anchors.judgements(scoring.database)
        found = await findings.situation(scoring.database, CHAIN, CRITERIA, standing, judgements)
        assert found is not None
        await findings.look_at(scoring.database, found, datetime.now(UTC))
        [card] = await labels.trust_cards(scoring.database)
        return plain(card.meaning)


async def forget_anchors(url: str) -> None:
    async with open_scoring(url) as scoring:
        standing = await anchors.standing(scoring.database, scoring.inbox.policy)
        await anchors.remove(scoring.database, [a.session_id for a in standing.anchors], by="ada")


def test_every_page_quotes_something() -> None:
    """Each answer shows a command and its output, but for the one that the page of the week gives."""
    answers = {p.name for p in QUESTIONS.glob("*.md")} - {"README.md", "did-a-chain-get-worse.md"}
    assert {page for page, _, _ in quotes()} == answers


@pytest.mark.parametrize(
    ("command", "piece"),
    [pytest.param(command, piece, id=f"{page}-{n}") for n, (page, command, piece) in enumerate(quotes())],
)
def test_quoted_output_is_printed(printed: dict[str, str], command: str, piece: str) -> None:
    """To the last digit, except for dates, which are those of the last quarter."""
    assert piece in printed[command]
