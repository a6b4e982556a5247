"""`tokens create`: a token that is shown once, and a line that the API takes."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tarsy_scoring.commands.tokens import tokens
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.tokens import TokensFile, utc_today

OLD = "- {name: old, scope: read, sha256: " + "a" * 64 + "}"


def create(file: Path | None, *arguments: str) -> Result:
    env = {"SCORING_API_TOKENS_FILE": str(file) if file else None}
    return CliRunner().invoke(tokens, ["create", *arguments], env=env)


def test_a_new_token_is_valid_with_its_line(tmp_path: Path) -> None:
    """The file gets no token. Without `--write` it is not touched."""
    file = tmp_path / "tokens.yaml"
    file.write_text(OLD, encoding="utf-8")  # without a line end
    shown = create(file, "ann 🙂", "--scope", "score", "--expires", "30d")
    assert file.read_text("utf-8") == OLD
    written = create(file, "ci", "--write")
    assert (shown.exit_code, written.exit_code) == (0, 0), written.output
    (first, line), (second, added) = (result.stdout.splitlines() for result in (shown, written))
    assert file.read_text("utf-8") == f"{OLD}\n{added}\n"
    file.write_text(f"{file.read_text('utf-8')}{line}\n", encoding="utf-8")
    read = TokensFile(file)
    found = [read.find(token.encode()) for token in (first, second)]
    today = utc_today()
    assert [(t.name, t.scope, t.expires) for t in found if t] == [
        ("ann 🙂", "score", today + timedelta(30)),
        ("ci", "read", today + timedelta(90)),
    ]
    assert first != second
    assert second not in file.read_text("utf-8")


def test_the_first_token_makes_the_file(tmp_path: Path) -> None:
    assert create(tmp_path / "tokens.yaml", "ci", "--write").exit_code == 0
    assert len(TokensFile(tmp_path / "tokens.yaml").current()) == 1


@pytest.mark.parametrize("content", ["[{name: old}]", "name: x", "- {"])
def test_a_file_that_takes_no_line_is_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(content, encoding="utf-8")
    ended = create(file, "ci", "--write")
    assert isinstance(ended.exception, ConfigurationError)
    assert (ended.stdout, file.read_text("utf-8")) == ("", content)


@pytest.mark.parametrize(
    "arguments", [["a\x07"], [""], ["ci", "--expires", "0d"], ["ci", "--expires", "90"], ["ci", "--scope", "all"]]
)
def test_wrong_arguments_end_with_status_2(arguments: list[str]) -> None:
    assert create(None, *arguments).exit_code == 2


def test_without_a_file_nothing_can_be_written(tmp_path: Path) -> None:
    for file in (None, tmp_path / "nowhere" / "tokens.yaml"):
        ended = create(file, "ci", "--write")
        assert (type(ended.exception), ended.stdout) == (ConfigurationError, "")
