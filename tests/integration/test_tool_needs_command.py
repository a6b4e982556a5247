"""`tool-needs` as a command: a real database, a judge over HTTP, and budgets."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import Scoring
from stored import store_score
from tarsy_scoring.studies.commands.tool_needs import tool_needs
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

CONFIG = Path(__file__).with_suffix(".yaml").read_text("utf-8")
ANALYSIS = "1. node_memory: nobody could see the memory pressure of the node."
QUOTED = {"review": "S1", "quote": "nobody could see the memory pressure"}
MADE_UP = {"review": "S1", "quote": "the disk of the node was full"}


async def read(scoring: Scoring, judge: ScriptedJudge, folder: Path, *options: str) -> tuple[Result, dict[str, Any]]:
    """Run the command; in another thread, so that the judge can answer. Its result by chain."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url))
    env = {"SCORING_DATABASE_URL": scoring.url, "SCORING_CONFIG": str(config)}
    ended = await asyncio.to_thread(CliRunner(env=env).invoke, tool_needs, ["--yes", "--json", *options])
    return ended, {chain["chain_id"]: chain for chain in json.loads(ended.stdout)["chains"]}


async def store_analysis(scoring: Scoring, chain: str, total: int = 40, more: str = "") -> str:
    score = await store_score(
        scoring,
        f"session-{uuid.uuid4()}",
        total,
        session={"chain_id": chain},
        missing_tools_analysis=f"{ANALYSIS} It ran in {chain}. {more}",
    )
    return str(score)


def reply(*quotes: dict[str, str]) -> Fault:
    need = {"title": "Node memory", "what": "Shows it.", "quotes": list(quotes)}
    return Fault(kind="reply", times=1, content=json.dumps({"needs": [need]}))


async def test_a_need_has_only_quotes_that_were_found(scoring: Scoring, judge: ScriptedJudge, tmp_path: Path) -> None:
    """Of the worst score of the chain, whose budget pays; no secret leaves the process."""
    score = await store_analysis(scoring, "k", 10, "AKIAIOSFODNN7EXAMPLE")
    await store_analysis(scoring, "k", 90)
    await store_analysis(scoring, "other")
    judge.script(reply(QUOTED, MADE_UP))

    ended, found = await read(scoring, judge, tmp_path, "--chain", "k", "--max-scores", "1")

    assert ended.exit_code == 0, ended.output
    assert found.keys() == {"k"}
    assert [need["quotes"] for need in found["k"]["needs"]] == [[{"score_id": score, "quote": QUOTED["quote"]}]]
    assert (found["k"]["notes"], found["k"]["read"], found["k"]["quotes_dropped"]) == (2, 1, 1)
    assert "AKIA" not in str(judge.requests)
    charged = await scoring.value("SELECT sum(charged_usd) FROM budget_days WHERE scope = 'chain' AND chain_id = 'k'")
    assert float(charged) > 0


async def test_chains_without_a_usable_provider_are_not_read(
    scoring: Scoring, judge: ScriptedJudge, tmp_path: Path
) -> None:
    """By a pause, a budget, a window or a missing price; a usable spare reads, and other chains are still read."""
    for chain in ("paused", "poor", "narrow", "unpriced", "quiet", "spared"):
        await store_analysis(scoring, chain)
    await scoring.rows("INSERT INTO pauses (chain_id, paused_by) VALUES ('paused', 'ada')")
    judge.script(reply(QUOTED))

    ended, found = await read(scoring, judge, tmp_path)

    assert (ended.exit_code, judge.calls, found.pop("spared")["read"]) == (0, 1, 1)
    for chain, words in (
        ("paused", "paused since"),
        ("poor", "budget"),
        ("narrow", "window"),
        ("unpriced", "prices"),
        ("quiet", "`judge`"),
    ):
        assert words in found.pop(chain)["why_not"]
    assert not found


@pytest.mark.parametrize("options", [(), ("--max-usd", "0.0001")], ids=["refused", "too expensive"])
async def test_the_command_fails_if_no_analysis_could_be_read(
    scoring: Scoring, judge: ScriptedJudge, tmp_path: Path, options: tuple[str, ...]
) -> None:
    await store_analysis(scoring, "k")
    judge.script(Fault(kind="status", status=401))

    ended, found = await read(scoring, judge, tmp_path, *options)

    assert (ended.exit_code, found["k"]["read"], judge.calls) == (1, 0, 0 if options else 1)
    assert ("--max-usd" in found["k"]["why_not"]) == bool(options)
