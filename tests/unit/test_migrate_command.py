"""`migrate` prints what it did as words or as JSON."""

from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands.migrate import migrate

NOWHERE = {"SCORING_DATABASE_URL": "postgresql://anyone@127.0.0.1:9/none"}


@pytest.mark.parametrize(
    ("options", "revisions", "words", "document"),
    [
        pytest.param([], ["0001", "0002"], "applied: 0001, 0002", '{"applied":["0001","0002"]}', id="up"),
        pytest.param(["--down", "0001"], ["0002"], "undone: 0002", '{"undone":["0002"]}', id="down"),
        pytest.param([], [], "nothing to do: the tables are up to date", '{"applied":[]}', id="nothing to do"),
    ],
)
def test_the_revisions_are_printed(
    monkeypatch: pytest.MonkeyPatch, options: list[str], revisions: list[str], words: str, document: str
) -> None:
    def migrated(*_args: Any, **_options: Any) -> list[str]:
        return revisions

    monkeypatch.setattr("tarsy_scoring.postgres.migrate.migrate", migrated)

    in_words = CliRunner().invoke(migrate, options, env=NOWHERE)
    as_json = CliRunner().invoke(migrate, [*options, "--json"], env=NOWHERE)

    assert (in_words.exit_code, in_words.stdout.strip()) == (0, words)
    assert (as_json.exit_code, as_json.stdout.strip()) == (0, document)
