"""Modules that a process does not load at its start: each takes time and memory, and few processes need it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.cli import COMMANDS, HEADINGS, LAB_COMMANDS, cli

NUMBERS = ("numpy", "scipy")
HTTP_SERVER = ("fastapi", "starlette", "uvicorn")
PAGES = ("jinja2", "markdown_it", "nh3")
RULES_OF_TEXT = (
    "tarsy_scoring.timeline.clean.sanitizer",
    "tarsy_scoring.timeline.clean.masking",
    "tarsy_scoring.timeline.clean.injection",
)
FEW_NEED = ("genai_prices", "jsonpath_rfc9535", "regex", "sqlalchemy", "alembic", "faust", "rich.progress")
DATABASE_AND_BROKER = ("asyncpg", "aiokafka", "tarsy_scoring.postgres.database", "tarsy_scoring.wiring")
CALLS = ("openai", "tenacity", "prometheus_client")
LOGGERS = ("structlog", "rich", "tarsy_scoring.telemetry.logging")
READERS_OF_REPLIES = (
    "tarsy_scoring.judge.assess",
    "tarsy_scoring.judge.read.grounding",
    "tarsy_scoring.judge.read.failure_tags",
)
RESULTS = ("tarsy_scoring.scoring.offline", "tarsy_scoring.evaluation.interaction", "tarsy_scoring.queue", "uvloop")
ERRORS_ONLY = ("difflib",)
DRY_RUN = (*PAGES, *LOGGERS, *READERS_OF_REPLIES, *RESULTS, *ERRORS_ONLY)
LOOKED = {"event_type": "llm_thinking", "content": "Look at the log."}
EXECUTION = {"execution_id": "e1", "agent_name": "a", "events": [LOOKED]}
PRICES = {"input": 2, "output": 8}
SESSION = {
    "session_id": "one",
    "status": "completed",
    "alert_data": "The disk of web-1 is full.",
    "final_analysis": "Its log is not rotated.",
    "stages": [{"stage_id": "s1", "stage_type": "investigation", "executions": [EXECUTION]}],
}


def loaded_by(program: str) -> set[str]:
    """The modules that a new process has loaded at the end of a program."""
    program += "\nimport sys; print(*sys.modules, sep='\\n')"
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_API_KEY": "no-key"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    ("start", "unneeded"),
    [
        pytest.param(
            "import tarsy_scoring.cli", (*NUMBERS, *HTTP_SERVER, *PAGES, *RULES_OF_TEXT, *FEW_NEED), id="any command"
        ),
        pytest.param(
            "import tarsy_scoring.cli, tarsy_scoring.commands.worker",
            (*NUMBERS, *HTTP_SERVER, *PAGES, *FEW_NEED),
            id="worker",
        ),
        pytest.param(
            "import tarsy_scoring.cli, tarsy_scoring.commands.api, tarsy_scoring.live.gateway\n"
            "import tarsy_scoring.web.app, tarsy_scoring.web.server\n"
            "tarsy_scoring.web.app.application()",
            (*NUMBERS, *PAGES, *RULES_OF_TEXT, *FEW_NEED, "aiohttp", "openai"),
            id="api",
        ),
    ],
)
def test_a_start_loads_only_what_it_needs(start: str, unneeded: tuple[str, ...]) -> None:
    loaded = loaded_by(start)

    assert sorted(loaded.intersection(unneeded)) == []


@pytest.mark.parametrize(
    "listing",
    [
        pytest.param("cli.main(['--help'], standalone_mode=False)", id="help"),
        pytest.param("ShellComplete(cli, {}, 'tarsy-scoring', '_').get_completions([], 'r')", id="completion"),
    ],
)
def test_a_list_of_the_commands_loads_none_of_them(listing: str) -> None:
    shell = "from click.shell_completion import ShellComplete"
    loaded = loaded_by(f"{shell}\nfrom tarsy_scoring.cli import cli\n{listing}")

    commands = {f"tarsy_scoring.commands.{name.replace('-', '_')}" for name in COMMANDS}
    assert loaded.isdisjoint(commands)
    assert sorted(loaded.intersection(("asyncio", "pydantic", "rich", "structlog", "yaml", *DATABASE_AND_BROKER))) == []


def test_the_help_of_no_command_loads_what_few_need() -> None:
    helps = f"""
import tarsy_scoring.cli
for name in {[*COMMANDS]}:
    tarsy_scoring.cli.cli.main([name, "--help"], standalone_mode=False)
"""
    loaded = loaded_by(helps)

    assert sorted(loaded.intersection(("scipy", *HTTP_SERVER, *PAGES, *FEW_NEED))) == []


@pytest.mark.parametrize(
    ("option", "provider", "unneeded"),
    [
        pytest.param("--dry-run", {}, DRY_RUN, id="dry run"),
        pytest.param(
            "--dry-run",
            {"prices_usd_per_million_tokens": PRICES},
            (*DRY_RUN, "genai_prices", "httpx2"),
            id="dry run at configured prices",
        ),
        pytest.param("--no-judge", {}, ("genai_prices",), id="no judge"),
    ],
)
def test_scoring_a_file_without_a_model_loads_no_client(
    option: str, provider: dict[str, Any], unneeded: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither of the database, of the broker, nor of a judge."""
    file, config = tmp_path / "session.json", tmp_path / "config.yaml"
    file.write_text(json.dumps(SESSION), encoding="utf-8")
    config.write_text(json.dumps({"providers": {"main": provider}}), encoding="utf-8")

    loaded = loaded_by(f"""
import os, tarsy_scoring.cli
os.environ["SCORING_CONFIG"] = {str(config)!r}
try:
    tarsy_scoring.cli.cli.main(["score", {str(file)!r}, {option!r}], standalone_mode=False)
except SystemExit as end:
    assert not end.code
""")

    clients = (*NUMBERS, *HTTP_SERVER, *DATABASE_AND_BROKER, *CALLS, "openai", "sqlalchemy", "rich.progress")
    assert sorted(loaded.intersection((*clients, *unneeded))) == []


@pytest.mark.parametrize("name", [*COMMANDS, *LAB_COMMANDS])
def test_the_list_of_the_commands_repeats_their_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (COMMANDS | LAB_COMMANDS)[name] == command.get_short_help_str(limit=500)


def test_the_help_lists_every_command_under_one_heading() -> None:
    shown = CliRunner().invoke(cli, ["--help"], env={"COLUMNS": "80"}).output.partition("Run the service:")[2]
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]

    assert sorted(listed) == sorted([*COMMANDS, *LAB_COMMANDS])
    assert [heading for heading in HEADINGS if f"\n{heading}:\n" in shown] == [*HEADINGS][1:]


def test_no_list_of_commands_cuts_a_summary_at_80_columns() -> None:
    """Neither the list of all commands nor that of a group shortens or wraps one."""
    groups: list[tuple[str, ...]] = [
        (name,) for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)
    ]
    assert len(groups) > 5
    for path in [(), *groups]:
        shown = CliRunner().invoke(cli, [*path, "--help"], env={"COLUMNS": "80"}).output
        summaries = [line for line in shown.partition("--help")[2].splitlines() if line.startswith("  ")]
        assert summaries
        assert all(line.endswith(".") and not line.endswith("..") for line in summaries), path
