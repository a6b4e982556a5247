"""The commands of docs/tutorial.md that need no server print what the page shows."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tarsy_scoring.cli import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/tutorial.md").read_text("utf-8")
FILES = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"```console\n\$ tarsy-scoring (.+?)\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder after all files of the page were saved."""
    for name, text in FILES.findall(PAGE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCORING_CONFIG", "config.yaml")
    return tmp_path


@pytest.mark.parametrize(("command", "shown"), QUOTED.findall(PAGE))
def test_shown_output_is_printed(folder: Path, command: str, shown: str) -> None:
    ended = CliRunner().invoke(cli, command.split())

    assert ended.exit_code == 0, ended.output
    for piece in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE):
        assert piece.strip() in ended.output
