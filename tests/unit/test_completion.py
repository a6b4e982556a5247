"""Completion in a shell: what it offers, and the scripts that ask for it."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tarsy_scoring.cli import cli
from tarsy_scoring.commands.completion import PROGRAM, VARIABLE

CONFIG = """
providers:
  cheap: {model: judge-1, api_key_env: null}
  careful: {model: judge-2, api_key_env: null}
defaults: {providers: [cheap]}
chains:
  kubernetes: {}
  network: {}
"""


def completed(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    shell = ShellComplete(cli, {}, PROGRAM, VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("SCORING_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        pytest.param(["re"], ["resume", "report", "rescore"], id="commands"),
        pytest.param(["dead-letters", "s"], ["show"], id="commands of a group"),
        pytest.param(["prune", "--k"], ["--keep"], id="options"),
        pytest.param(["pause", "--provider", "c"], ["careful", "cheap"], id="providers"),
        pytest.param(["report", "approaches", "--chain", ""], ["kubernetes", "network"], id="chains"),
        pytest.param(["criteria", "show", "cli-"], ["cli-tool-use"], id="criteria"),
        pytest.param(["completion", "z"], ["zsh"], id="shells"),
    ],
)
def test_commands_options_and_names_of_the_settings_are_offered(words: list[str], offered: list[str]) -> None:
    assert sorted(completed(*words)) == sorted(offered)


def test_settings_that_cannot_be_used_offer_no_name(config: Path) -> None:
    config.write_text("chains: [", encoding="utf-8")

    assert completed("pause", "--chain", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_this_command(shell: str) -> None:
    printed = CliRunner().invoke(cli, ["completion", shell])

    assert printed.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in printed.stdout
    assert PROGRAM in printed.stdout


def test_another_shell_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["completion", "csh"])

    assert refused.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in refused.stderr
