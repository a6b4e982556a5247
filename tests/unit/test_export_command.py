"""`export` refuses options that contradict each other, without a database."""

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands.export import export

NOWHERE = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--min-score", "90", "--max-score", "10"], "min_score", id="no such range"),
        pytest.param(["--since", "yesterday"], "not a time", id="no time"),
        pytest.param(["--format", "xml"], "--format", id="no format"),
        pytest.param(["--prefix", ""], "--prefix", id="nothing to begin with"),
    ],
)
def test_invalid_options_are_refused(options: list[str], words: str) -> None:
    """The checks of the API apply: exit status 2 with the option, before any connection."""
    result = CliRunner().invoke(export, options, env=NOWHERE)

    assert result.exit_code == 2, result.output
    assert words in result.output
