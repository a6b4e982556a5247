"""Foreign text on a terminal, and options that take numbers."""

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.cli import cli, main
from tarsy_scoring.commands.shared import FiniteRange, plain_lines, print_json
from tarsy_scoring.timeline.text import one_line

HOSTILE = "evil\x1b[31m\x1b]0;title\x07\r\n\u202etxt\u200b"


def test_foreign_text_is_harmless() -> None:
    """It moves no cursor, sets no title, and neither hides nor reverses text."""
    assert one_line(HOSTILE) == "evil [31m ]0;title txt"
    assert one_line("  größer   日本 ") == "größer 日本"
    assert plain_lines("  a\n  b\x1b[2J\n") == "  a\n  b [2J\n"


def test_foreign_text_in_json_is_harmless_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON leaves C1 control characters, such as one that begins a terminal sequence, and direction characters."""
    foreign = HOSTILE + "\x7f\x9b2J größer 日本"
    print_json({"text": foreign})

    printed = capsys.readouterr().out
    assert json.loads(printed) == {"text": foreign}
    assert printed.strip().isprintable()
    assert "größer 日本" in printed


@pytest.mark.parametrize(
    "asked", [["score", HOSTILE], ["export", "--since", HOSTILE], [HOSTILE]], ids=["file", "option", "command"]
)
def test_an_error_message_quotes_hostile_text_harmlessly(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tarsy-scoring", *asked])
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "evil" in said
    assert not any(c in said for c in "\x1b\x07\r\u202e\u200b")


def numbers(command: click.Command, *path: str) -> Iterator[tuple[list[str], click.Parameter]]:
    """Every option of the command line that takes a float, and the path of its command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from numbers(inner, *path, name)
    for parameter in command.params:
        if isinstance(parameter.type, click.types.FloatParamType):
            yield [*path], parameter


def test_every_float_option_must_be_finite() -> None:
    """NaN and infinity cannot lift a limit: the command ends with status 2 before it reads anything."""
    found = list(numbers(cli))
    assert len(found) > 3
    for path, parameter in found:
        assert type(parameter.type) is FiniteRange, path
        for number in ("nan", "inf", "-inf", "1e999"):
            ended = CliRunner().invoke(cli, [*path, parameter.opts[0], number])
            assert ended.exit_code == 2, (path, number)
            assert f"Invalid value for '{parameter.opts[0]}'" in " ".join(ended.stderr.split())
