"""The command line as people and scripts meet it."""

import asyncio
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

from infrastructure import Kafka, wait_until
from processes import Service
from tarsy_scoring.cli import cli
from tarsy_scoring_lab.scripted_judge import Fault


def _commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _commands(command, *path, name)


@pytest.mark.parametrize("path", [(), *_commands(cli)], ids=lambda path: "-".join(path) or "itself")
def test_every_command_teaches_itself(path: tuple[str, ...]) -> None:
    """`--help` works without any settings, and says more than the usage."""
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: ")
    assert len(shown.output.splitlines()) > 4


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["no-such-command"], id="unknown-command"),
        pytest.param(["worker", "--only", "cooking"], id="unknown-role"),
        pytest.param(["rescore"], id="nothing-chosen"),
        pytest.param(["rescore", "../etc"], id="no-session-id"),
        pytest.param(["rescore", "--since", "yesterday"], id="no-time"),
        pytest.param(["rescore", "session-1", "--criteria", "none"], id="unknown-criteria"),
        pytest.param(["migrate", "--down", "no-such-revision"], id="unknown-revision"),
        pytest.param(["dead-letters", "replay"], id="nothing-to-replay"),
        pytest.param(["score", "no-such-file.json"], id="no-such-file"),
    ],
)
async def test_what_was_asked_wrongly_ends_with_two(service: Service, arguments: list[str]) -> None:
    """Status 2, and words instead of a traceback."""
    ended = await service.run(*arguments)
    assert ended.status == 2
    assert ended.stderr
    assert "Traceback" not in ended.stderr


async def test_score_scores_one_file_without_database_or_broker(service: Service) -> None:
    """The score document on standard output, status 0; nothing else is needed but a judge."""
    service.add_session("session-1")
    alone = {"SCORING_DATABASE_URL": "", "SCORING_KAFKA_BOOTSTRAP_SERVERS": "", "SCORING_TIMELINE_SOURCE": ""}
    ended = await service.run("score", "sessions/session-1.json", "--json", **alone)
    assert (ended.status, ended.stderr) == (0, "")
    document = ended.document
    assert (document["session_id"], document["status"], document["error_kind"]) == ("session-1", "completed", None)
    assert document["total_score"] in range(101)
    assert [t["kind"] for t in document["turns"]] == ["analysis", "missing_tools"]
    assert document["is_current_criteria"]
    for_people = await service.run("score", "sessions/session-1.json", **alone)
    assert for_people.status == 0
    assert "/100" in for_people.stdout


@pytest.mark.parametrize(
    ("fault", "error_kind"),
    [
        pytest.param(Fault(kind="refusal"), "refused", id="refusal"),
        pytest.param(Fault(kind="status", status=401), "judge_auth", id="wrong-key"),
        pytest.param(Fault(kind="no_score"), "no_score_in_answer", id="no-total"),
    ],
)
async def test_score_without_a_score_ends_with_one(service: Service, fault: Fault, error_kind: str) -> None:
    """Status 1, and a document whose error_kind says why."""
    service.add_session("session-1")
    service.judge.script(fault)
    ended = await service.run("score", "sessions/session-1.json", "--json")
    assert ended.status == 1
    assert (ended.document["error_kind"], ended.document["total_score"]) == (error_kind, None)
    assert "sk-planted-judge-key" not in ended.stdout + ended.stderr


async def test_score_asks_nobody_when_told_so(service: Service) -> None:
    """`--dry-run` shows the masked prompt and its size, `--no-judge` the document without a total."""
    planted = "postgresql://admin:planted-password@db/x"
    service.add_session("session-1", alert_data=f"The alert of session-1 says {planted}")
    dry = await service.run("score", "sessions/session-1.json", "--dry-run", "--json", OPENAI_API_KEY="")
    assert dry.status == 0
    prompt = json.dumps(dry.document["messages"])
    assert "The alert of session-1" in prompt
    assert "planted-password" not in prompt
    assert dry.document["tokens"] > 100
    unjudged = await service.run("score", "sessions/session-1.json", "--no-judge", "--json", OPENAI_API_KEY="")
    assert (unjudged.status, unjudged.document["status"], unjudged.document["total_score"]) == (0, "completed", None)
    assert service.judge.calls == 0


@pytest.fixture
def temporary_files() -> Iterator[Path]:
    """Where a command keeps its temporary files: a folder that other accounts may enter, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="tarsy-scoring-test-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["sigterm", "sigkill"])
async def test_stack_leaves_nothing_behind(service: Service, temporary_files: Path, end: signal.Signals) -> None:
    """One line of JSON when all of it answers; after its end no process and no file remains, however it ended."""
    stack = service.command("stack", "--json", TMPDIR=str(temporary_files))
    await wait_until(lambda: stack.stdout.endswith("\n"), 180, "the stack answers")
    told = json.loads(stack.stdout)
    assert told["broker"] in ("apache-kafka", "tansu")
    parts = psutil.Process(stack.pid).children(recursive=True)
    assert len(parts) >= 2, "PostgreSQL and a broker at least"
    assert (await service.run("migrate", **told["env"])).status == 0
    assert os.listdir(temporary_files)
    stack.signal(end)
    assert await stack.ended() == (0 if end == signal.SIGTERM else -end)
    await wait_until(lambda: not any(p.is_running() for p in parts), 60, "every process has ended")
    await wait_until(lambda: not os.listdir(temporary_files), 60, "every file is gone")


@pytest.mark.slow
async def test_stack_is_the_environment_of_a_worker(service: Service) -> None:
    """What `stack` prints is all that `migrate` and `worker` need."""
    stack = service.command("stack", "--json", "--broker", "tansu")
    await wait_until(lambda: stack.stdout.endswith("\n"), 180, "the stack answers")
    clean = dict.fromkeys(service.env, "")  # empty counts as not set
    env = clean | json.loads(stack.stdout)["env"] | {"SCORING_METRICS_PORT": "0", "SCORING_LOG_FORMAT": "json"}
    assert (await service.run("migrate", **env)).status == 0
    await service.worker(**env).ready()


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["tansu", "apache-kafka"])
async def test_the_demo_scores_every_example(service: Service, broker: str, kafka: Kafka) -> None:
    """Ten examples, ten scores, status 0, without a terminal."""
    if broker == "apache-kafka" and kafka.name != broker:
        pytest.skip("Apache Kafka cannot run here")
    clean = dict.fromkeys(service.env, "")
    ended = await service.run("demo", "--broker", broker, timeout_s=180, **clean)
    assert ended.status == 0
    assert "10 of 10 sessions scored" in ended.stdout
    assert ended.stdout.count("/100") == 10
    assert "stand-in" in ended.stdout


async def test_two_workers_migrating_at_once_do_not_collide(service: Service, empty_database_url: str) -> None:
    """`migrate` twice at the same time: both end with 0, and the tables are there once."""
    env = {"SCORING_DATABASE_URL": empty_database_url}
    both = await asyncio.gather(service.run("migrate", **env), service.run("migrate", **env))
    assert [ended.status for ended in both] == [0, 0]
    assert (await service.run("migrate", **env)).stdout.startswith("nothing to do")
