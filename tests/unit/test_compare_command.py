"""`compare`: the values it chooses, and the arguments that it refuses at once."""

import click
import pytest
from click.testing import CliRunner

from tables import table
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.studies.commands.compare import choose_values, compare
from tarsy_scoring.studies.comparison import ScoredSession

# --- which values --------------------------------------------------------------------------------------


def sessions(*values: str) -> list[ScoredSession]:
    return [ScoredSession(value, None, None, 60, None, None, (), None) for value in values]


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        pytest.param(("b", "a", "b"), None, ("b", "a"), id="the-older-first"),
        pytest.param(("b", "a"), ("a", "b"), ("a", "b"), id="as-wanted"),
        pytest.param(("a", "b", "c"), ("c", "a"), ("c", "a"), id="two-of-three"),
    ],
)
def test_wanted_values_or_the_only_two_are_compared(
    found: tuple[str, ...], wanted: tuple[str, str] | None, chosen: tuple[str, str]
) -> None:
    assert choose_values("guidance", sessions(*found), wanted) == chosen


@pytest.mark.parametrize(
    ("found", "wanted", "error", "words"),
    [
        pytest.param(("a", "b", "c", "b"), None, click.UsageError, r"'b' \(2 scored sessions\)", id="three-values"),
        pytest.param(
            ("a", "b"), ("a", "d"), click.BadParameter, "choose two of the values of .guidance.: .a. ", id="unknown"
        ),
        pytest.param(("a", "a"), None, ScoringError, r"have 'a' \(2 scored", id="one-value"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(
    found: tuple[str, ...], wanted: tuple[str, str] | None, error: type[Exception], words: str
) -> None:
    """Where another command line would help it is a usage error; missing data is a failure."""
    with pytest.raises(error, match=words):
        choose_values("guidance", sessions(*found), wanted)


# --- invalid arguments ---------------------------------------------------------------------------------


@table
def test_invalid_arguments_end_with_status_2(arguments: list[str], words: str) -> None:
    """The command refuses them before it reads anything, and says what would help."""
    ended = CliRunner().invoke(compare, arguments)

    assert ended.exit_code == 2, ended.output
    assert words in ended.output
