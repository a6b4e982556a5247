"""Anchors on a real database: which sessions are chosen, when their scores are requested, and which count."""

import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import DEFAULT_CRITERIA, Scoring, completion, failure, rescore
from drift_rows import plant_judgements, plant_scores, totals
from stored import store_score, store_session
from tarsy_scoring.cli import cli
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.studies import anchors
from tarsy_scoring.studies.anchors import Anchor
from tarsy_scoring.studies.drift_loop import DriftLoop
from tarsy_scoring.telemetry.metrics import Metrics

OLD, NEW = "judge-old", "judge-new"
LAST_WEEK = datetime.now(UTC) - timedelta(days=7)


async def plant_anchors(scoring: Scoring, count: int = 3, judge: str = OLD) -> list[str]:
    """Anchors of a chain that this judge has scored."""
    chosen = await plant_scores(scoring, judge, totals(60, count), begin=LAST_WEEK)
    await anchors.add(scoring.database, chosen, by="ada", note="typical")
    return sorted(chosen)


async def ask(scoring: Scoring) -> list[uuid.UUID]:
    """Request the anchors that are due."""
    found = await anchors.standing(scoring.database, scoring.inbox.policy)
    return await anchors.ask(scoring.inbox, [a for a in found.anchors if a.is_due], found.judges, by="anchors")


async def by_session(scoring: Scoring) -> dict[str, Anchor]:
    return {a.session_id: a for a in (await anchors.standing(scoring.database, scoring.inbox.policy)).anchors}


async def pass_a_day(scoring: Scoring) -> None:
    await scoring.rows("UPDATE scoring_requests SET received_at = received_at - interval '25 hours'")
    await scoring.rows("UPDATE anchor_sessions SET added_at = added_at - interval '25 hours'")


# --- requesting scores ---------------------------------------------------------------------------------


async def test_anchors_without_a_judgement_are_requested_as_bulk(scoring: Scoring) -> None:
    chosen = await plant_anchors(scoring)

    scores = await ask(scoring)

    rows = [await scoring.score(i) for i in scores]
    assert sorted(r["session_id"] for r in rows) == chosen
    shown = {(r["purpose"], r["priority"], r["criteria"], r["score_triggered_by"], r["status"]) for r in rows}
    assert shown == {("anchor", Priority.BULK, DEFAULT_CRITERIA, "anchors", "pending")}
    assert {a.state for a in (await by_session(scoring)).values()} == {"under_way"}
    assert await ask(scoring) == []


async def test_the_loop_requests_due_anchors(scoring: Scoring) -> None:
    await plant_anchors(scoring)
    loop = DriftLoop(load_settings({}), scoring.inbox, Metrics())

    assert await loop.run_once(datetime.now(UTC), looks=False)

    assert {a.state for a in (await by_session(scoring)).values()} == {"under_way"}


async def test_concurrent_requests_create_each_score_once(scoring: Scoring) -> None:
    await plant_anchors(scoring)
    seen = await anchors.standing(scoring.database, scoring.inbox.policy)

    first, second = await asyncio.gather(
        *(anchors.ask(scoring.inbox, seen.anchors, seen.judges, by="anchors") for _ in range(2))
    )

    assert sorted(first) == sorted(second)
    assert await scoring.value("SELECT count(*) FROM session_scores WHERE purpose = 'anchor'") == 3


async def test_a_judged_anchor_is_requested_again_for_a_new_judge(scoring: Scoring) -> None:
    chosen = await plant_anchors(scoring)
    await plant_judgements(scoring, OLD, dict.fromkeys(chosen, 70))
    await plant_scores(scoring, NEW, [60], begin=LAST_WEEK + timedelta(days=1))
    assert {a.state for a in (await by_session(scoring)).values()} == {"judged"}
    assert await ask(scoring) == []

    await plant_scores(scoring, NEW, [60, 60], begin=LAST_WEEK + timedelta(days=2))

    assert len(await ask(scoring)) == 3


async def test_a_failing_anchor_is_retried_daily_and_given_up_after_three(scoring: Scoring) -> None:
    """Removing and adding the anchor starts the count again."""
    await plant_anchors(scoring, 1)
    for _ in range(3):
        assert len(await ask(scoring)) == 1
        await scoring.store.end(failure((await scoring.claim())[0]))
        assert await ask(scoring) == [], "not at once"
        await pass_a_day(scoring)

    [anchor] = (await by_session(scoring)).values()
    assert (anchor.state, anchor.error_kind, anchor.asked) == ("given_up", "refused", 3)
    assert await ask(scoring) == []

    await anchors.remove(scoring.database, [anchor.session_id], by="ada")
    await anchors.add(scoring.database, [anchor.session_id], by="ada")
    assert (await by_session(scoring))[anchor.session_id].state == "lacking", "it begins anew"


async def test_an_anchor_score_neither_delays_nor_replaces_a_production_score(scoring: Scoring) -> None:
    """Requests of people are claimed first, and the anchor's total is not the session's."""
    [chosen] = await plant_anchors(scoring, 1)
    [anchor] = await ask(scoring)
    assert await scoring.accept(rescore(chosen)) == ["accepted"]
    [claimed] = await scoring.claim(1)
    assert claimed.purpose == "production", "people come first"

    await scoring.store.end(completion(claimed, total_score=80))
    [late] = await scoring.claim()
    await scoring.store.end(completion(late, total_score=10, judge_fingerprint=OLD))

    assert late.score_id == anchor
    shown = await scoring.reader.score_of_session(chosen)
    assert shown is not None
    assert shown["total_score"] == 80
    [said] = await anchors.judgements(scoring.database)
    assert (said.session_id, said.judge_fingerprint, said.total) == (chosen, OLD, 10)


async def test_flagged_judgements_and_removed_anchors_do_not_count(scoring: Scoring) -> None:
    first, second = await plant_anchors(scoring, 2)
    await plant_judgements(scoring, OLD, {first: 50})
    await store_score(scoring, second, 20, purpose="anchor", flags=["outcome_score_mismatch"])
    await plant_judgements(scoring, OLD, dict.fromkeys(await plant_scores(scoring, OLD, [60], begin=LAST_WEEK), 1))

    assert [j.total for j in await anchors.judgements(scoring.database)] == [50]

    await anchors.remove(scoring.database, [first], by="ada")
    assert await anchors.judgements(scoring.database) == []


# --- which sessions ------------------------------------------------------------------------------------


async def test_drawing_takes_recently_scored_sessions_that_are_no_anchors(scoring: Scoring) -> None:
    there = await plant_anchors(scoring, 6)
    fresh = await plant_scores(scoring, OLD, totals(60, 9), begin=LAST_WEEK)
    await plant_scores(scoring, OLD, totals(60, 9), begin=LAST_WEEK - timedelta(days=100))
    await plant_scores(scoring, OLD, totals(60, 9), begin=LAST_WEEK, chain="databases")

    drawn = await anchors.draw(scoring.database, 6, chain="kubernetes")
    every = await anchors.draw(scoring.database, 1000)

    assert set(drawn) < set(fresh)
    assert not set(every) & set(there)
    assert len(every) == 18
    assert len(drawn) == 6


# --- the commands --------------------------------------------------------------------------------------


async def command(scoring: Scoring, *arguments: str) -> Result:
    variables = {"SCORING_DATABASE_URL": scoring.url, "USER": "ada", "COLUMNS": "80"}
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=variables)


async def read_json(scoring: Scoring, *arguments: str) -> Any:
    ended = await command(scoring, *arguments, "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


async def test_the_commands_draw_run_list_and_remove_anchors(scoring: Scoring) -> None:
    sessions = await plant_scores(scoring, OLD, totals(60, 5), begin=LAST_WEEK)
    usage = {"input_tokens": 1000, "output_tokens": 200, "cost_usd": 0.03}
    await scoring.rows("UPDATE session_scores SET usage = $1", usage)

    added = await read_json(scoring, "anchors", "add", "--yes", "--sample", "3", "--note", "drawn")
    assert sorted(added["chosen"]) == added["added"]
    again = await command(scoring, "anchors", "add", "--yes", *added["added"])
    assert "0 anchors added, 3 were anchors already" in again.stdout
    rest = await command(scoring, "anchors", "add", "--yes", "--sample", "10")
    assert "2 anchors added: the last 90 days have no more" in rest.stdout

    unasked = await command(scoring, "anchors", "add", sessions[0])
    assert (unasked.exit_code, "0.0300 USD" in unasked.stderr) == (2, True)
    shown = await command(scoring, "anchors", "run")
    assert shown.exit_code == 0
    assert "5 anchors: 5 not judged yet by the current judge" in shown.stdout
    assert await scoring.value("SELECT count(*) FROM session_scores WHERE purpose = 'anchor'") == 0

    done = await command(scoring, "anchors", "run", "--yes", "--timeout", "0", "--json")
    assert done.exit_code == 1, "what is outstanding has no total yet"
    document = json.loads(done.stdout)
    assert (document["asked"], document["outstanding"], document["lacking"]) == (5, 5, 5)
    assert document["estimate"]["cost_usd"]["about"] == pytest.approx(0.15)

    listed = await read_json(scoring, "anchors", "list")
    assert {a["session_id"] for a in listed["anchors"]} == set(sessions)
    assert {a["state"] for a in listed["anchors"]} == {"under_way"}
    assert [j["fingerprint"] for j in listed["judges"]] == [OLD]
    assert sessions[0] in (await command(scoring, "anchors", "list")).stdout

    removed = await read_json(scoring, "anchors", "remove", sessions[0], "nobody")
    assert removed == {"removed": [sessions[0]]}


async def test_one_unfit_session_refuses_the_whole_command(scoring: Scoring) -> None:
    [fit] = await plant_scores(scoring, OLD, [60], begin=LAST_WEEK)
    await store_session(scoring, "unscored")
    await store_score(scoring, "chainless", 50, session={"chain_id": None})

    refused = await command(scoring, "anchors", "add", "--yes", fit, "unknown", "unscored", "chainless")

    assert refused.exit_code == 1
    for unfit in (
        "unknown: it was never scored here",
        "unscored: it has no score",
        "chainless: it belongs to no chain",
    ):
        assert unfit in refused.stderr
    assert await by_session(scoring) == {}
