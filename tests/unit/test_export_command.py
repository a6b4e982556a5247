"""`export`: what it is asked, and the file that it leaves, without a database."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.commands import export as command
from tarsy_scoring.commands.export import export

NOWHERE = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--min", "90", "--max", "10"], "min_score", id="no such range"),
        pytest.param(["--min-score", "101"], "--min-score", id="above 100"),
        pytest.param(["--since", "yesterday"], "not a time", id="no time"),
        pytest.param(["--since", "2026-02-01", "--until", "2026-01-01"], "since", id="ends before it began"),
        pytest.param(["--status", "not_scored"], "--status", id="no status of a score"),
        pytest.param(["--status", "failed", "--latest"], "latest", id="latest failed"),
        pytest.param(["--label", "guidance"], "--label", id="half a label"),
        pytest.param(["--outcome", "fine"], "--outcome", id="no outcome"),
        pytest.param(["--format", "xml"], "--format", id="no format"),
        pytest.param(["--prefix", ""], "--prefix", id="nothing to begin with"),
        pytest.param(["--output", "/nowhere/scores.csv"], "--output", id="no such folder"),
        pytest.param(["--output", "/"], "--output", id="a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: list[str], words: str) -> None:
    """Exit status 2 and the option, with the checks of the API, before anything is connected to."""
    result = CliRunner().invoke(export, options, env=NOWHERE)

    assert result.exit_code == 2, result.output
    assert words in result.output


def test_a_whole_export_replaces_the_file(tmp_path: Path) -> None:
    """Under its name there is the older one until the new one is whole, also behind a link."""
    place, link = tmp_path / "scores.jsonl", tmp_path / "latest"
    place.write_text("older")
    link.symlink_to(place)
    with command._opened(str(link)) as file:
        file.write(b"newer")
        assert place.read_text() == "older"

    assert place.read_text() == "newer"
    assert sorted(tmp_path.iterdir()) == [link, place]


@pytest.mark.parametrize("error", [RuntimeError("away"), OSError(28, "No space left on device")], ids=["away", "full"])
def test_half_an_export_leaves_the_older_one(tmp_path: Path, error: Exception) -> None:
    """An interrupted export leaves no file; a full disk is reported in one sentence."""
    place = tmp_path / "scores.jsonl"
    place.write_text("older")
    expected: Any = click.ClickException if isinstance(error, OSError) else RuntimeError

    def break_off() -> None:
        with command._opened(str(place)) as file:
            file.write(b"half")
            raise error

    with pytest.raises(expected):
        break_off()

    assert place.read_text() == "older"
    assert list(tmp_path.iterdir()) == [place]


def test_a_device_is_written_to_and_not_replaced() -> None:
    """`/dev/null` stays what it is."""
    with command._opened("/dev/null") as file:
        file.write(b"gone")

    assert Path("/dev/null").is_char_device()


def test_exports_at_the_same_time_do_each_other_no_harm(tmp_path: Path) -> None:
    """As of a job that has not ended when it is started again: the file is always that of one of them, and whole."""
    place = tmp_path / "scores"

    with command._opened(str(place)) as slow:
        slow.write(b"slow " * 10_000)
        with command._opened(str(place)) as quick:
            quick.write(b"quick")
        slow.write(b"end")
        slow.flush()
        assert place.read_bytes() == b"quick"

    assert place.read_bytes() == b"slow " * 10_000 + b"end"
    assert list(tmp_path.iterdir()) == [place]
