"""The how-to guides: what they show is printed, their YAML is accepted, and their commands exist."""

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.cli import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {path.stem: path.read_text("utf-8") for path in (DOCS / "how-to").glob("[!R]*.md")}
FILES = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"```console\n\$ tarsy-scoring (.+?)\n(.*?)```", re.DOTALL)
LONGEST_PAGE = 65


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGES[page], re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder with the session file that several pages use."""
    for name, text in FILES.findall(PAGES["judge-a-session-file"]):
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "command", "shown"), [(page, *quote) for page, text in PAGES.items() for quote in QUOTED.findall(text)]
)
def test_shown_output_is_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, page: str, command: str, shown: str
) -> None:
    for name, text in FILES.findall(PAGES[page]):
        (folder / name).write_text(text, "utf-8")
    if (folder / "config.yaml").exists():
        monkeypatch.setenv("SCORING_CONFIG", "config.yaml")

    ended = CliRunner().invoke(cli, command.split())

    assert ended.exit_code == 0, ended.output
    for piece in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE):
        assert piece.strip() in ended.output


@pytest.mark.parametrize("page", [page for page in PAGES if "```yaml" in PAGES[page]])
def test_yaml_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """By `check-config`, without any other setting."""
    for number, block in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, "utf-8")
        monkeypatch.setenv("SCORING_CONFIG", str(path))
        ended = CliRunner().invoke(cli, ["check-config"])
        assert (ended.exit_code, ended.stderr) == (0, ""), ended.output


@pytest.mark.parametrize("page", sorted(PAGES))
def test_commands_and_options_exist(page: str) -> None:
    """Every command of a shell block and of the text can be parsed; none runs."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [line.strip() for line in lines] + re.findall(r"`(tarsy-scoring [^`]+)`", PAGES[page])
    ours = [shlex.split(command, comments=True)[1:] for command in commands if command.startswith("tarsy-scoring ")]
    assert ours
    for arguments in ours:
        command: click.Command = cli
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), arguments.pop(0))
            assert found is not None, arguments
            command = found
        values = [
            {"TIME": "2026-11-01", "FILE": __file__, "LABELS.csv": __file__}.get(value, value) for value in arguments
        ]
        parser = command.make_parser(click.Context(command))
        parser.parse_args(values)


def test_every_guide_is_listed_and_short() -> None:
    listed = (DOCS / "how-to" / "README.md").read_text("utf-8")
    navigation = (DOCS.parent / ".ci" / "mkdocs.yml").read_text("utf-8")
    for page, text in PAGES.items():
        assert f"]({page}.md)" in listed
        assert f"how-to/{page}.md" in navigation
        assert text.count("\n") <= LONGEST_PAGE, page
