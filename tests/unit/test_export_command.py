"""`export` refuses options that contradict each other, without a database."""

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands.export import export

NOWHERE = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--min-score", "90", "--max-score", "10"], "min_score", id="no such range"),
        pytest.param(["--min-score", "101"], "--min-score", id="above 100"),
        pytest.param(["--since", "yesterday"], "not a time", id="no time"),
        pytest.param(["--since", "2026-02-01", "--until", "2026-01-01"], "since", id="ends before it began"),
        pytest.param(["--status", "not_scored"], "--status", id="no status of a score"),
        pytest.param(["--status", "failed", "--latest"], "latest", id="latest failed"),
        pytest.param(["--label", "guidance"], "--label", id="half a label"),
        pytest.param(["--outcome", "fine"], "--outcome", id="no outcome"),
        pytest.param(["--format", "xml"], "--format", id="no format"),
        pytest.param(["--prefix", ""], "--prefix", id="nothing to begin with"),
    ],
)
def test_invalid_options_are_refused(options: list[str], words: str) -> None:
    """The checks of the API apply: exit status 2 with the option, before any connection."""
    result = CliRunner().invoke(export, options, env=NOWHERE)

    assert result.exit_code == 2, result.output
    assert words in result.output
