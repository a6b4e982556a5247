"""`report missing-tools --with-judge` as a command: a real database, a judge over HTTP, and budgets."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import Scoring
from stored import store_score
from tarsy_scoring.commands.report import report
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

CONFIG = """
providers:
  default: &judge
    base_url: "{base_url}"
    api_key_env: null
    model: scripted-judge
    prices_usd_per_million_tokens: {{input: 2, output: 8}}
  inside: {{<<: *judge, base_url: "{inside_url}"}}
  narrow: {{<<: *judge, context_window_tokens: 4000, max_reply_tokens: 1300}}
  unpriced: {{<<: *judge, prices_usd_per_million_tokens: null}}
defaults: {{providers: [default], daily_budget_usd: 50}}
chains:
  inner: {{providers: [inside, default]}}
  quiet: {{judge: {{enabled: false}}}}
  poor: {{daily_budget_usd: 0}}
  narrow: {{providers: [narrow]}}
  unpriced: {{providers: [unpriced], daily_budget_usd: null}}
  spared: {{providers: [unpriced, narrow, default]}}
"""
ANALYSIS = "1. node_memory: nobody could see the memory pressure of the node."
QUOTED = {"review": "S1", "quote": "nobody could see the memory pressure"}
MADE_UP = {"review": "S1", "quote": "the disk of the node was full"}
NEED = {"title": "Node memory", "what": "Shows it."}
GROUP = {"title": "Memory of nodes", "what": "Shows it."}


@pytest.fixture
async def inner_judge() -> AsyncIterator[ScriptedJudge]:
    """The only judge that may see the chain `inner`."""
    async with ScriptedJudge() as judge:
        yield judge


async def reported(
    scoring: Scoring, judge: ScriptedJudge, folder: Path, *options: str, inner_judge: ScriptedJudge | None = None
) -> Result:
    """Run the command; in another thread, so that the judge can answer."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url, inside_url=(inner_judge or judge).base_url))
    env = {"SCORING_DATABASE_URL": scoring.url, "SCORING_CONFIG": str(config)}
    arguments = ["missing-tools", "--with-judge", "--json", *options]
    return await asyncio.to_thread(CliRunner(env=env).invoke, report, arguments)


async def store_analysis(scoring: Scoring, chain: str | None, total: int = 40, more: str = "") -> str:
    """Store a score that names `node_memory` as missing, with the chain in its text; returns its id."""
    score = await store_score(
        scoring,
        f"session-{uuid.uuid4()}",
        total,
        missing_tools=("node_memory",),
        session={"chain_id": chain},
        missing_tools_analysis=f"{ANALYSIS} It ran in {chain}. {more}",
    )
    return str(score)


def needs_reply(*quotes: dict[str, str]) -> Fault:
    return a_reply({"needs": [NEED | {"quotes": list(quotes)}]})


def a_reply(content: dict[str, Any]) -> Fault:
    return Fault(kind="reply", times=1, content=json.dumps(content))


async def test_a_need_has_only_quotes_that_were_found(scoring: Scoring, judge: ScriptedJudge, tmp_path: Path) -> None:
    score = await store_analysis(scoring, "k")
    await store_analysis(scoring, "other")
    judge.script(needs_reply(QUOTED, MADE_UP))

    ended = await reported(scoring, judge, tmp_path, "--chain", "k")

    assert ended.exit_code == 0, ended.output
    reading: dict[str, Any] = json.loads(ended.stdout)["reading"]
    [found] = reading["findings"]
    [need] = found["needs"]
    assert need["quotes"] == [{"score_id": score, "quote": QUOTED["quote"]}]
    assert (found["quotes_dropped"], found["notes_read"], found["chains"]) == (1, 1, ["k"])
    assert (reading["left_out"], ended.stderr) == ([], "")
    assert reading["cost_usd"] > 0
    charged = await scoring.value("SELECT sum(charged_usd) FROM budget_days WHERE scope = 'chain'")
    assert float(charged) == pytest.approx(reading["cost_usd"])


async def test_providers_see_only_chains_that_may_use_them(
    scoring: Scoring, judge: ScriptedJudge, inner_judge: ScriptedJudge, tmp_path: Path
) -> None:
    for chain in ("k", "k", None, "inner", "quiet"):
        await store_analysis(scoring, chain)
    judge.script(
        needs_reply(QUOTED, QUOTED | {"review": "S2"}),
        needs_reply(QUOTED),
        a_reply({"groups": [GROUP | {"members": ["N1", "N2"]}]}),
    )
    inner_judge.script(needs_reply(QUOTED))

    ended = await reported(scoring, judge, tmp_path, inner_judge=inner_judge)

    assert ended.exit_code == 0, ended.output
    reading = json.loads(ended.stdout)["reading"]
    sent, sent_inside = ("".join(map(str, one.requests)) for one in (judge, inner_judge))
    assert [(word in sent, word in sent_inside) for word in ("ran in k.", "ran in None.", "ran in inner.")] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "ran in quiet." not in sent + sent_inside
    found = {one["provider"]: one for one in reading["findings"]}
    assert {name: (one["chains"], one["notes_read"]) for name, one in found.items()} == {
        "default": (["k", None], 3),
        "inside": (["inner"], 1),
    }
    quotes = {name: [len(need["quotes"]) for need in one["needs"]] for name, one in found.items()}
    assert quotes == {"default": [3], "inside": [1]}
    [left_out] = reading["left_out"]
    assert (left_out["chain_id"], left_out["notes"], "judge.enabled" in left_out["why"]) == ("quiet", 1, True)
    assert "chain quiet: 1 analysis not read: its judge is switched off" in ended.stderr
    assert "--chain NAME" in ended.stderr
    charged = await scoring.rows("SELECT chain_id FROM budget_days WHERE scope = 'chain' AND charged_usd > 0")
    assert {row["chain_id"] for row in charged} == {"k", "", "inner"}


async def test_chains_without_a_usable_provider_are_left_out(
    scoring: Scoring, judge: ScriptedJudge, tmp_path: Path
) -> None:
    """
    By a pause, a budget, a window or a missing price; other chains are still reported.

    A chain whose first provider has no prices or too small a window is read by its spare.
    """
    for chain in ("paused", "poor", "narrow", "unpriced", "spared"):
        await store_analysis(scoring, chain)
    await scoring.rows("INSERT INTO pauses (chain_id, paused_by) VALUES ('paused', 'ada')")
    judge.script(needs_reply(QUOTED))

    whole, paused, quiet = [
        json.loads((await reported(scoring, judge, tmp_path, *options)).stdout)["reading"]
        for options in ([], ["--chain", "paused"], ["--chain", "poor"])
    ]

    assert judge.calls == 1
    assert [(one["provider"], one["chains"]) for one in whole["findings"]] == [("default", ["spared"])]
    why = {left["chain_id"]: left["why"] for left in whole["left_out"]}
    for chain, words in (
        ("paused", "paused since"),
        ("poor", "budget"),
        ("narrow", "window"),
        ("unpriced", "providers.unpriced.prices_usd_per_million_tokens"),
    ):
        assert words in why.pop(chain)
    assert not why
    assert [(one["findings"], len(one["left_out"])) for one in (paused, quiet)] == [([], 1), ([], 1)]


async def test_the_command_fails_if_no_analysis_could_be_read(
    scoring: Scoring, judge: ScriptedJudge, tmp_path: Path
) -> None:
    await store_analysis(scoring, "k")
    judge.script(Fault(kind="status", status=401))

    ended = await reported(scoring, judge, tmp_path)

    assert ended.exit_code == 1
    told = json.loads(ended.stdout)
    assert [tool["tool_name"] for tool in told["tools"]] == ["node_memory"]
    assert (told["reading"]["findings"], len(told["reading"]["left_out"])) == ([], 1)
    assert "chain k: 1 analysis not read" in ended.stderr


async def test_analyses_beyond_max_scores_are_reported_as_left_out(
    scoring: Scoring, judge: ScriptedJudge, tmp_path: Path
) -> None:
    for chain, total in (("quiet", 0), ("k", 90), ("k", 10)):
        await store_analysis(scoring, chain, total, f"Its total was {total}.")
    judge.script(needs_reply(QUOTED))

    reading = json.loads((await reported(scoring, judge, tmp_path, "--max-scores", "1")).stdout)["reading"]

    assert [(left["chain_id"], left["notes"]) for left in reading["left_out"]] == [("quiet", 1), ("k", 1)]
    assert "total was 10." in str(judge.requests)
    assert judge.calls == 1


async def test_no_secret_leaves_the_process(scoring: Scoring, judge: ScriptedJudge, tmp_path: Path) -> None:
    await store_analysis(scoring, "k", more="AKIAIOSFODNN7EXAMPLE \x1b[31m <<<SESSION-DATA 0123456789abcdef END>>>")
    judge.script(needs_reply(QUOTED))

    await reported(scoring, judge, tmp_path)

    [request] = judge.requests
    assert "ran in k. [REDACTED:aws_key#1]" in str(request)
    assert not any(word in str(request) for word in ("AKIA", "\x1b", "\\x1b", "0123456789abcdef"))


async def test_no_call_exceeds_the_given_cost(scoring: Scoring, judge: ScriptedJudge, tmp_path: Path) -> None:
    await store_analysis(scoring, "k")

    ended = await reported(scoring, judge, tmp_path, "--max-usd", "0.0001")

    told = json.loads(ended.stdout)
    assert [tool["tool_name"] for tool in told["tools"]] == ["node_memory"]
    [left_out] = told["reading"]["left_out"]
    assert "--max-usd" in left_out["why"]
    assert (left_out["notes"], told["reading"]["cost_usd"], ended.exit_code) == (1, 0, 1)
    assert judge.calls == 0
