"""`rescore SESSION` asks the timeline source first, so that a session which it does not have gets no failed score."""

import asyncio
import json
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builders import Scoring
from stored import store_score
from tarsy_scoring.cli import cli

EXAMPLES = Path(str(files("tarsy_scoring_lab") / "examples"))
OOM, MINER = "demo-oom-checkout", "demo-cpu-miner-guess"
REQUESTED = "SELECT session_id FROM scoring_requests WHERE source = 'cli'"


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A source with a session that ended and one that runs."""
    for name, changes in ((OOM, {}), (MINER, {"status": "in_progress"})):
        document = json.loads((EXAMPLES / f"{name}.json").read_text("utf-8")) | changes
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


async def rescore(scoring: Scoring, *arguments: str, **env: str) -> Result:
    known = {"SCORING_DATABASE_URL": scoring.url} | env
    return await asyncio.to_thread(CliRunner().invoke, cli, ["rescore", *arguments], env=known)


async def test_only_sessions_of_the_source_are_requested(scoring: Scoring, sessions: Path) -> None:
    """The others are named with the reason, and their scores stay as they are."""
    await store_score(scoring, "lost", 71)
    source = {"SCORING_TIMELINE_SOURCE": "files", "SCORING_TIMELINE_DIR": str(sessions)}

    done = await rescore(scoring, "lost", OOM, MINER, **source)
    lost = await rescore(scoring, "lost", "--json", **source)

    assert (done.exit_code, done.stdout) == (1, "1 session: 1 accepted\n")
    gone, running = done.stderr.splitlines()
    assert gone == f"lost: not requested: there is no file {sessions / 'lost.json'}"
    assert running.startswith(f"{MINER}: not requested: the session {MINER} has not ended")
    document = json.loads(lost.stdout)
    assert (lost.exit_code, document["sessions"], list(document["refused"])) == (1, 0, ["lost"])
    assert [row["session_id"] for row in await scoring.rows(REQUESTED)] == [OOM]
    document = await scoring.reader.score_of_session("lost")
    assert document is not None
    assert (document["total_score"], "latest_attempt" in document) == (71, False)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({}, id="none is set"),
        pytest.param({"SCORING_TIMELINE_SOURCE": "files", "SCORING_TIMELINE_DIR": "/not/mounted"}, id="no folder"),
        pytest.param(
            {"SCORING_TIMELINE_SOURCE": "tarsy-db", "SCORING_TIMELINE_DATABASE_URL": "postgresql://u@127.0.0.1:1/t"},
            id="away",
        ),
    ],
)
async def test_without_its_source_the_command_says_what_may_happen(scoring: Scoring, source: dict[str, str]) -> None:
    done = await rescore(scoring, "unknown", **source)

    assert (done.exit_code, done.stdout) == (0, "1 session: 1 accepted\n")
    assert "the score of a session that it does not have will fail as session_not_found" in done.stderr
