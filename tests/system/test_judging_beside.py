"""Judgements for other purposes than production: ordered, followed and shown by commands."""

import shlex
import signal
import statistics
from typing import Any

import pytest

from processes import Process, Service, assert_whole
from tarsy_scoring_lab.scripted_judge import Fault

CRITERIA = ("investigation", "investigation-methodology")


@pytest.fixture
def worker(service: Service) -> Process:
    return service.worker()


async def run_again(service: Service, stderr: str) -> Any:
    """Run the command that stderr prints on a line of its own."""
    [named] = [line for line in stderr.splitlines() if line.startswith("  tarsy-scoring ")]
    program, *arguments = shlex.split(named)
    assert program == "tarsy-scoring"
    return await service.run(*arguments, "--json")


async def test_consistency_of_a_session(service: Service, worker: Process) -> None:
    """It makes the requested number of judgements; none of them becomes the score of the session."""
    for total, outcome in ((40, "partial"), (48, "partial"), (61, "correct"), (73, "correct")):
        content = f"An analysis.\n\nOutcome: {outcome}\n\n{total}"
        service.judge.script(Fault(kind="reply", content=content, turn="analysis", times=1))
    service.add_session("session-1")

    refused = await service.run("consistency", "session-1", "-n", "4")
    assert (refused.status, await service.count("true")) == (2, 0)
    assert "1 session would be scored 4 times each" in refused.stderr
    ended = await service.run("consistency", "session-1", "-n", "4", "--yes", "--json", USER="ada")

    assert ended.status == 0, ended.stderr
    document = ended.document
    totals = document["totals"]
    assert len(totals) == 4
    assert document["spread"]["width"] == max(totals) - min(totals) > 0
    assert document["spread"]["standard_deviation"] == pytest.approx(statistics.stdev(totals))
    assert document["flip_rate"]["pairs"] == 6
    assert (document["criteria"], document["outstanding"]) == (CRITERIA[0], 0)
    assert len(document["judge_fingerprints"]) == 1
    assert (document["cost"]["cost_usd"], document["cost"]["unknown"]) == (None, 4)
    assert await service.count("purpose = 'consistency' AND score_triggered_by = 'ada' AND status = 'completed'") == 4
    seen = await assert_whole(service, [])
    assert {e.payload["purpose"] for e in seen} == {"consistency"}

    again = await service.run("consistency", "session-1", "-n", "4", "--json", "--run", document["run_id"])
    assert (again.status, again.document) == (0, document)
    assert await service.count("true") == 4
    for_people = await service.run("consistency", "session-1", "-n", "4", "--run", document["run_id"])
    assert " ".join(map(str, sorted(totals))) in for_people.stdout


async def test_a_command_without_a_worker_times_out_and_can_be_continued(service: Service) -> None:
    service.add_session("session-1")

    ended = await service.run(
        "consistency", "session-1", "-n", "2", "--criteria", CRITERIA[1], "--timeout", "0.2", "--yes"
    )

    assert ended.status == 1
    assert "no worker is free" in ended.stderr
    assert "2 of 2 judgements are outstanding (2 pending)" in ended.stderr
    service.worker("--only", "judge")
    later = await run_again(service, ended.stderr)
    assert (later.status, later.document["outstanding"], len(later.document["totals"])) == (0, 0, 2)
    assert later.document["criteria"] == CRITERIA[1]
    assert await service.count("true") == 2


async def test_an_interrupted_command_prints_how_to_continue(service: Service) -> None:
    service.add_session("session-1")
    waiting = service.command("consistency", "session-1", "-n", "2", "--yes")
    await service.scores_reach(2, "purpose = 'consistency'")

    waiting.signal(signal.SIGINT)

    assert await waiting.ended() == 130
    service.worker("--only", "judge")
    later = await run_again(service, waiting.log)
    assert (later.status, len(later.document["totals"])) == (0, 2)


async def test_comparison_of_two_criteria(service: Service, worker: Process) -> None:
    sessions = service.add_sessions(2)

    ended = await service.run("compare", "--criteria", *CRITERIA, *sessions, "--yes", "--json")

    assert ended.status == 0, ended.stderr
    document = ended.document
    assert [c["name"] for c in document["criteria"]] == list(CRITERIA)
    assert [s["session_id"] for s in document["sessions"]] == sessions
    differences = []
    for found in document["sessions"]:
        first, second = (j["total_score"] for j in found["judgements"])
        assert found["difference"] == second - first
        differences.append(second - first)
    assert document["differences"]["mean"] == pytest.approx(statistics.mean(differences))
    assert await service.count("purpose = 'shadow'") == await service.count("true") == 4

    missing = await service.run("compare", "--criteria", *CRITERIA, *sessions, "no-such-session", "--yes")
    assert missing.status == 1
    assert missing.stdout.count("session_not_found") == 2
    assert "over 2 of 3 sessions" in missing.stdout
    await assert_whole(service, [])
