"""Sessions that are scored again: by event and by command, now, later or not at all."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from processes import Service, assert_whole
from tarsy_scoring.embedded.scripted_judge import Fault
from tarsy_scoring.judge import criteria as shipped


@pytest.fixture
def own_criteria(service: Service) -> dict[str, str]:
    """The environment of an operator with two criteria files of their own."""
    folder = service.folder / "criteria"
    folder.mkdir()
    file = Path(shipped.__file__).parents[1] / "criteria" / "investigation-methodology.yaml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in ("strict", "lenient"):
        changed = content | {"name": name, "system_prompt": f"{content['system_prompt']}\nBe {name}."}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    config = service.folder / "config.yaml"
    config.write_text(yaml.safe_dump({"criteria_dirs": [str(folder)]}), encoding="utf-8")
    return {"SCORING_CONFIG": str(config)}


async def test_a_rescore_event_keeps_history(service: Service) -> None:
    """A second completed score beside the first, which stays as it was; asked for by people, so first in line."""
    service.worker()
    events = await service.announce(*service.add_sessions(1))
    first = await service.score_becomes("session-0000", "completed")
    events.append(await service.ask_again("session-0000", "again", requested_by="ada", reason="better tools"))
    assert await service.disposition("again") == "accepted"
    second = await service.score_becomes("session-0000", "completed", score_triggered_by="ada")
    await assert_whole(service, events)
    assert second["priority"] == 0
    assert dict((await service.rows("SELECT * FROM session_scores ORDER BY created_at"))[0]) == dict(first)


async def test_a_rescore_without_force_is_answered_by_the_score_there_is(
    service: Service, own_criteria: dict[str, str]
) -> None:
    """`force: false`: not again under the same criteria, but under others."""
    service.worker(**own_criteria)
    events = await service.announce(*service.add_sessions(1))
    await service.score_becomes("session-0000", "completed")
    await service.ask_again("session-0000", "same", force=False)
    events.append(await service.ask_again("session-0000", "other", force=False, criteria="strict"))
    assert await service.disposition("same") == "already_scored"
    assert await service.disposition("other") == "accepted"
    await service.score_becomes("session-0000", "completed", criteria="strict")
    await assert_whole(service, events)


async def test_a_rescore_under_other_criteria_waits_for_the_running_score(
    service: Service, own_criteria: dict[str, str]
) -> None:
    """Deferred while one runs; of several only the newest; promoted by the end of the running score."""
    service.judge.script(Fault(kind="hang", times=1))
    service.worker(SCORING_ATTEMPT_TIMEOUT_S="4", **own_criteria)
    events = await service.announce(*service.add_sessions(1))
    await service.score_becomes("session-0000", "in_progress", current_stage="analyzing_methodology")
    await service.ask_again("session-0000", "first", criteria="strict")
    assert await service.disposition("first") == "deferred"
    events.append(await service.ask_again("session-0000", "second", criteria="lenient"))
    assert await service.disposition("second") == "deferred"
    assert await service.disposition("first") == "superseded"
    await service.score_becomes("session-0000", "pending", attempts_burned=1)
    await service.let_retries_be_due()
    await service.score_becomes("session-0000", "completed", criteria="lenient")
    await assert_whole(service, events)
    assert await service.disposition("second") == "accepted"
    assert await service.count("criteria = 'investigation-methodology' AND status = 'completed'") == 1


async def test_a_second_request_for_a_running_session_makes_none(service: Service) -> None:
    """The same criteria, still pending: the request is answered by the score under way."""
    service.worker("--only", "intake,relay")
    events = await service.announce(*service.add_sessions(1))
    await service.scores_reach(1, "status = 'pending'")
    await service.ask_again("session-0000", "again")
    assert await service.disposition("again") == "in_progress"
    service.worker("--only", "judge")
    await service.all_end(1)
    await assert_whole(service, events)


async def test_unknown_criteria_fail_where_the_asker_can_see_it(service: Service) -> None:
    """A request under criteria that nobody has becomes a score that failed with the reason."""
    service.worker()
    service.add_session("session-1")
    event = await service.ask_again("session-1", "odd", criteria="no-such-criteria")
    row = await service.score_becomes("session-1", "failed", error_kind="unknown_criteria")
    assert "no-such-criteria" in row["error_message"]
    await assert_whole(service, [], failed=[event])


async def test_the_command_asks_for_named_sessions_and_selections(service: Service) -> None:
    """Named sessions go first; a selection is counted unless --yes, and goes last."""
    service.worker()
    service.judge.script(Fault(kind="refusal", match="alert of session-0001 "))
    ok, refused = await service.announce(*service.add_sessions(2))
    await service.all_end(2)
    named = await service.run("rescore", "session-0000", "--json", USER="ada")
    assert (named.status, named.document) == (0, {"sessions": 1, "dispositions": {"accepted": 1}, "done": True})
    await service.all_end(3)
    counted = await service.run("rescore", "--failed", "--error-kind", "refused", "--json")
    assert (counted.status, counted.document) == (0, {"sessions": 1, "dispositions": {}, "done": False})
    service.judge.clear()
    done = await service.run("rescore", "--failed", "--yes", "--json")
    assert (done.status, done.document) == (0, {"sessions": 1, "dispositions": {"accepted": 1}, "done": True})
    await service.all_end(4)
    await assert_whole(service, [ok], failed=[refused])
    newest = {s: await service.score_becomes(s, "completed") for s in ("session-0000", "session-0001")}
    assert (newest["session-0000"]["priority"], newest["session-0000"]["score_triggered_by"]) == (0, "ada")
    assert newest["session-0001"]["priority"] == 2
