"""`erase` and `prune`: how long each kind of record is kept, and which arguments are refused."""

import click
import pytest
from click.testing import CliRunner, Result

from tables import table
from tarsy_scoring.commands.erase import erase
from tarsy_scoring.commands.prune import prune
from tarsy_scoring.retention.pruning import days_to_keep


def invoke(command: click.Command, *arguments: str) -> Result:
    """Run a command without a database: one that gets as far as connecting was accepted."""
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        pytest.param(erase, [], "name sessions, or a person", id="erase-nothing"),
        pytest.param(erase, [""], "'' is not a session id", id="erase-empty"),
        pytest.param(erase, ["s-1", "a b"], "'a b' is not a session id", id="erase-no-id"),
        pytest.param(prune, ["--deleted-upstream", "--keep", "90"], "excludes --keep", id="upstream-and-keep"),
        pytest.param(prune, ["--keep", "0"], "1<=x<=36500", id="keep-nothing"),
    ],
)
def test_invalid_arguments_are_refused(command: click.Command, arguments: list[str], says: str) -> None:
    """The command ends with status 2 before it opens anything."""
    ended = invoke(command, *arguments)

    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())


@table
def test_each_kind_is_kept_for_its_time(days: int | None, keep: dict[str, int]) -> None:
    """Records recognise events that are delivered again."""
    assert days_to_keep(days) == {"answers": 1, **keep}
