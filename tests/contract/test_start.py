"""Modules that a process does not load at its start: each takes time and memory, and few processes need it."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.cli import COMMANDS, HEADINGS, LAB_COMMANDS, cli

NUMBERS = ("numpy", "scipy")
HTTP_SERVER = ("fastapi", "starlette", "uvicorn")
PAGES = ("jinja2", "markdown_it", "nh3")
RULES_OF_TEXT = ("tarsy_scoring.timeline.fence", "tarsy_scoring.timeline.masking", "tarsy_scoring.timeline.injection")
FEW_NEED = ("openai", "genai_prices", "jsonpath_rfc9535", "regex", "sqlalchemy", "alembic", "faust", "rich.progress")


def loaded_by(program: str) -> set[str]:
    """The modules that a new process has loaded at the end of a program."""
    program += "\nimport sys; print(*sys.modules, sep='\\n')"
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
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
            (*NUMBERS, *PAGES, *RULES_OF_TEXT, *FEW_NEED, "aiohttp"),
            id="api",
        ),
    ],
)
def test_a_start_loads_only_what_it_needs(start: str, unneeded: tuple[str, ...]) -> None:
    loaded = loaded_by(start)

    assert sorted(loaded.intersection(unneeded)) == []


def test_a_list_of_the_commands_loads_none_of_them() -> None:
    loaded = loaded_by("import tarsy_scoring.cli\ntarsy_scoring.cli.cli.main(['--help'], standalone_mode=False)")

    commands = {f"tarsy_scoring.commands.{name.replace('-', '_')}" for name in COMMANDS}
    assert loaded.isdisjoint(commands)


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
