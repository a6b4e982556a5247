"""A session with text that PostgreSQL cannot store, in any of its fields, is scored like any other."""

from pathlib import Path

from attempting import open_service
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from tarsy_scoring.events import SOURCE_RESCORE
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.timeline.files import parse_session
from unit.timeline.poisoned import SURVIVES, poisoned

YAML = Path(__file__).with_suffix(".yaml").read_text("utf-8")


async def test_a_session_with_unstorable_text_is_judged_and_stored(database_url: str, tmp_path: Path) -> None:
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML, encoding="utf-8")
    async with open_service(database_url, SCORING_CONFIG=str(config)) as service:
        await service.request(chain_id=None, source=SOURCE_RESCORE, priority=Priority.PEOPLE)
        claimed = await service.claim()

        await service.attempt(claimed, FakeJudge(ANALYSIS, MISSING_TOOLS), parse_session(poisoned()))

        score = await service.score(claimed.score_id)
        [session] = await service.database.once(lambda c: c.fetch("SELECT * FROM sessions"))

    assert (score["status"], score["error_message"], score["total_score"]) == ("completed", None, 62)
    assert score["chain_id"] == f"chain{SURVIVES}"
    assert score["interaction"]["by_subcommand"]
    assert [gate["passed"] for gate in score["gates"]] == [False, True]
    assert (session["alert_type"], session["labels"]) == (f"kind{SURVIVES}", {f"key{SURVIVES}": f"value{SURVIVES}"})
