"""`pause` and `resume` for operators and scripts, on a real PostgreSQL."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tables import table
from tarsy_scoring.commands.pause import pause, resume

YAML = """
providers:
  main: {api_key_env: null, model: judge-1}
  spare: {api_key_env: null, model: judge-2}
"""
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Run:
    """Runs `pause ...` or `resume ...` for alice, with two providers and a database in which nothing is paused."""
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML, encoding="utf-8")
    monkeypatch.setenv("SCORING_CONFIG", str(config))
    monkeypatch.setenv("SCORING_DATABASE_URL", database_url)
    monkeypatch.setenv("USER", "alice")

    def run(command: str, *arguments: str) -> Result:
        return CliRunner().invoke({"pause": pause, "resume": resume}[command], arguments)

    return run


def pauses_of(ended: Result) -> list[tuple[str | None, str | None]]:
    """Chain and provider of the pauses in a JSON answer."""
    assert ended.exit_code == 0, ended.output
    return [(p["chain"], p["provider"]) for p in json.loads(ended.stdout)["pauses"]]


@pytest.mark.parametrize(
    ("arguments", "pauses"),
    [
        pytest.param([], (None, None), id="everything"),
        pytest.param(["--chain", "kubernetes"], ("kubernetes", None), id="chain"),
        pytest.param(["--chain", "kubernetes", "--provider", "main"], ("kubernetes", "main"), id="both"),
    ],
)
def test_a_named_chain_or_provider_is_paused_and_resumed(
    run: Run, arguments: list[str], pauses: tuple[str | None, str | None]
) -> None:
    assert pauses_of(run("pause", *arguments, "--reason", "key is being changed", "--json")) == [pauses]
    [shown] = json.loads(run("pause", "--list", "--json").stdout)["pauses"]
    assert (shown["by"], shown["reason"]) == ("alice", "key is being changed")

    ended = run("resume", *arguments, "--json")

    assert json.loads(ended.stdout) == {"lifted": 1, "pauses": []}


@table
def test_wrong_arguments_exit_with_two(arguments: list[str], told: str, *, run: Run) -> None:
    ended = run(*arguments)

    assert ended.exit_code == 2
    assert told in ended.stderr
    assert pauses_of(run("pause", "--list", "--json")) == []
