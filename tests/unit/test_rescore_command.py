"""`rescore` and `backfill` refuse options that contradict each other before they read the database."""

from click.testing import CliRunner, Result

from tables import table
from tarsy_scoring.cli import cli
from tarsy_scoring.errors import ConfigurationError


def invoke(line: str) -> Result:
    """Run a command line, where `''` is an empty argument, without a database."""
    return CliRunner().invoke(cli, ["" if word == "''" else word for word in line.split()])


@table
def test_contradictory_options_are_refused(line: str, says: str) -> None:
    ended = invoke(line)

    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())


@table
def test_valid_options_get_as_far_as_the_database(line: str) -> None:
    ended = invoke(line)

    assert isinstance(ended.exception, ConfigurationError)
    assert "SCORING_DATABASE_URL" in str(ended.exception)
