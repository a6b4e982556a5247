"""`export --with-session`: chats of sessions for fine-tuning, masked, without the answer in the question."""

import asyncio
import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import Scoring
from stored import store_score
from tarsy_scoring.cli import cli
from tarsy_scoring.labels import labels
from tarsy_scoring.scores import export

EXAMPLES = Path(str(files("tarsy_scoring_lab") / "examples"))
OOM, MINER, HOSTILE = "demo-oom-checkout", "demo-cpu-miner-guess", "demo-hostile-logs"


async def exported(
    scoring: Scoring, folder: Path, *options: str, how: str = "--format=chat"
) -> tuple[Result, list[dict[str, Any]]]:
    env = {"SCORING_DATABASE_URL": scoring.url, "SCORING_TIMELINE_SOURCE": "files", "SCORING_TIMELINE_DIR": str(folder)}
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["export", how, *options], env=env)
    return done, [json.loads(line) for line in done.stdout.splitlines()]


async def test_a_line_is_a_chat_with_the_score_and_the_labels_beside_it(scoring: Scoring) -> None:
    """Fields of our own have types that do not change from line to line, and no name that a tool reads."""
    score_id = await store_score(scoring, OOM, 91)
    for number in (60.0, 95.0):
        await labels.add(scoring.database, score_id, labels.NewLabel(number=number, reason="right"), by="ada")
    await labels.add(scoring.database, score_id, labels.NewLabel(agrees=True), by="bob")
    done, [line] = await exported(scoring, EXAMPLES)
    again, _ = await exported(scoring, EXAMPLES, how="--with-session")

    recorded = json.loads((EXAMPLES / f"{OOM}.json").read_text("utf-8"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert again.stdout == done.stdout
    assert set(line) == {"messages", "tools", "session_id", "total_score", "tarsy_scoring"}
    assert (line["session_id"], line["total_score"]) == (OOM, 91)
    assert line["messages"][-1] == {"role": "assistant", "content": recorded["final_analysis"].strip()}
    record = json.loads(line["tarsy_scoring"])
    assert record["score"]["score_id"] == str(score_id)
    given = [(label["agrees"], label["number"], label["reason"]) for label in record["labels_by_people"]]
    assert given == [(None, 95.0, "right"), (True, None, None)], "the last label of each person"
    assert "ada" not in line["tarsy_scoring"]


async def test_filters_apply_and_an_unreadable_session_is_named(
    scoring: Scoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over batches, too: the others are written, and the exit status says that some are missing."""
    monkeypatch.setattr(export, "EXPORT_BATCH", 1)
    shutil.copy(EXAMPLES / f"{OOM}.json", tmp_path)
    (tmp_path / f"{MINER}.json").write_text("not JSON\x1b[2J", encoding="utf-8")
    ids = {name: await store_score(scoring, name, total) for name, total in ((OOM, 91), (MINER, 90), (HOSTILE, 60))}
    for name in (OOM, HOSTILE):
        await labels.add(scoring.database, ids[name], labels.NewLabel(agrees=True), by="ada")

    done, lines = await exported(scoring, tmp_path)
    assert (done.exit_code, [line["session_id"] for line in lines]) == (1, [OOM])
    counted, *named = sorted(done.stderr.splitlines())
    assert counted == "left out: 2 scores"
    assert [line.split(":")[1] for line in named] == [f" session {MINER}", f" session {HOSTILE}"]
    assert "\x1b" not in done.stderr

    done, lines = await exported(scoring, tmp_path, "--min-score", "90", "--labelled")
    assert (done.exit_code, done.stderr, [line["total_score"] for line in lines]) == (0, "", [91])
    assert (await exported(scoring, tmp_path, "--format=csv", how="--with-session"))[0].exit_code == 2


async def test_a_source_that_is_away_ends_the_export(scoring: Scoring, tmp_path: Path) -> None:
    """No session is called unreadable because of it."""
    await store_score(scoring, OOM, 91)
    done, lines = await exported(scoring, tmp_path / "nowhere")

    assert (done.exit_code != 0, lines) == (True, [])
    assert "left out" not in done.output
