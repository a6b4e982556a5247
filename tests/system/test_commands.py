"""The command line as people and scripts meet it."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from infrastructure import wait_until
from processes import Service
from tarsy_scoring.cli import cli


def _commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _commands(command, *path, name)


def test_every_command_has_help_without_settings() -> None:
    for path in [(), *_commands(cli)]:
        shown = CliRunner().invoke(cli, [*path, "--help"])
        assert shown.exit_code == 0, path
        assert shown.output.startswith("Usage: "), path
        assert len(shown.output.splitlines()) > 4, path


async def test_a_command_line_that_is_wrong_ends_with_status_two(service: Service) -> None:
    ended = await service.run("rescore", "session-1", "--criteria", "none")
    assert ended.status == 2
    assert ended.stderr
    assert "Traceback" not in ended.stderr


async def test_score_scores_one_file_without_database_or_broker(service: Service) -> None:
    service.add_session("session-1")
    alone = {"SCORING_DATABASE_URL": "", "SCORING_KAFKA_BOOTSTRAP_SERVERS": "", "SCORING_TIMELINE_SOURCE": ""}
    ended = await service.run("score", "sessions/session-1.json", "--json", **alone)
    assert (ended.status, ended.stderr.startswith("2 calls")) == (0, True)
    document = ended.document
    assert (document["session_id"], document["status"], document["error_kind"]) == ("session-1", "completed", None)
    assert document["total_score"] in range(101)
    assert [t["kind"] for t in document["turns"]] == ["analysis", "missing_tools"]
    assert document["is_current_criteria"]
    for_people = await service.run("score", "sessions/session-1.json", **alone)
    assert for_people.status == 0
    assert "/100" in for_people.stdout


@pytest.fixture
def temporary_files() -> Iterator[Path]:
    """A folder for temporary files that other accounts may enter, as they may enter /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="tarsy-scoring-test-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
async def test_stack_leaves_nothing_behind(service: Service, temporary_files: Path) -> None:
    stack = service.command("stack", "--json", TMPDIR=str(temporary_files))
    await wait_until(lambda: stack.stdout.endswith("\n"), 180, "the stack answers")
    told = json.loads(stack.stdout)
    assert told["broker"] in ("apache-kafka", "tansu")
    parts = psutil.Process(stack.pid).children(recursive=True)
    assert len(parts) >= 2, "PostgreSQL and a broker at least"
    assert (await service.run("migrate", **told["env"])).status == 0
    assert os.listdir(temporary_files)
    stack.signal(signal.SIGKILL)
    assert await stack.ended() == -signal.SIGKILL
    await wait_until(lambda: not any(p.is_running() for p in parts), 60, "every process has ended")
    await wait_until(lambda: not os.listdir(temporary_files), 60, "every file is gone")


@pytest.mark.slow
async def test_the_demo_scores_every_example(service: Service) -> None:
    clean = dict.fromkeys(service.env, "")
    demo = service.command("demo", "--broker", "tansu", "--keep-running", **clean)
    await wait_until(lambda: "Ctrl-C" in demo.stdout or demo.status is not None, 180, "the tour is printed")
    assert "10 of 10 sessions scored" in demo.stdout
    assert demo.stdout.count("/100") == 10
    assert "recorded judgements" in demo.stdout
    assert await demo.stop() == 0
