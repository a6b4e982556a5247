"""`export` refuses options that contradict each other, without a database."""

from click.testing import CliRunner

from tables import table
from tarsy_scoring.commands.export import export

NOWHERE = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}


@table
def test_invalid_options_are_refused(options: list[str], words: str) -> None:
    """The checks of the API apply: exit status 2 with the option, before any connection."""
    result = CliRunner().invoke(export, options, env=NOWHERE)

    assert result.exit_code == 2, result.output
    assert words in result.output
