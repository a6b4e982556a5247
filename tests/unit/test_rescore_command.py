"""`rescore` and `backfill`: what cannot be meant is refused before anything is asked for."""

import click
import pytest
from click.testing import CliRunner, Result

from tarsy_scoring.commands.rescore import backfill, rescore
from tarsy_scoring.errors import ConfigurationError


def invoke(command: click.Command, *arguments: str) -> Result:
    """Without a database: whoever gets as far as that has been let through."""
    return CliRunner().invoke(command, arguments)


def was_let_through(ended: Result) -> bool:
    return isinstance(ended.exception, ConfigurationError) and "SCORING_DATABASE_URL" in str(ended.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["s-1", "--chain", "k"], "--chain", id="named-and-chain"),
        pytest.param(["s-1", "--obsolete"], "name sessions, or select them", id="named-and-obsolete"),
        pytest.param(["s-1", "--failed"], "name sessions, or select them", id="named-and-failed"),
        pytest.param(["s-1", "--since", "2026-01-01"], "name sessions, or select them", id="named-and-since"),
        pytest.param(["s-1", "--error-kind", "refused"], "--error-kind needs --failed", id="named-and-kind"),
        pytest.param([], "name sessions, or select them", id="nothing"),
        pytest.param(["--chain", "k"], "name sessions, or select them", id="chain-alone"),
        pytest.param(["--error-kind", "refused"], "name sessions, or select them", id="kind-alone"),
        pytest.param(["--since", "2026-01-01", "--error-kind", "refused"], "needs --failed", id="since-and-kind"),
        pytest.param(["--obsolete", "--error-kind", ""], "--error-kind: it is empty", id="obsolete-and-empty-kind"),
        pytest.param(["--obsolete", "--failed"], "--obsolete and --failed exclude each other", id="two-selections"),
        pytest.param(["--obsolete", "--criteria", "cli-tool-use"], "excludes --criteria", id="own-criteria"),
        pytest.param(["--since", ""], "'' is not a time", id="empty-time"),
        pytest.param(["--failed", "--since", ""], "'' is not a time", id="failed-since-empty-time"),
        pytest.param(["--failed", "--chain", ""], "--chain: it is empty", id="empty-chain"),
        pytest.param(["--failed", "--chain", " "], "--chain: it is empty", id="blank-chain"),
        pytest.param(["--failed", "--error-kind", ""], "--error-kind: it is empty", id="empty-kind"),
        pytest.param([""], "'' is not a session id", id="empty-session"),
    ],
)
def test_selectors_that_exclude_each_other(arguments: list[str], says: str) -> None:
    """Status 2 and what would be right; nothing that was written is left out of account in silence."""
    ended = invoke(rescore, *arguments)

    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())


def test_a_chain_beside_names_is_told_what_to_do() -> None:
    """A session has one chain, so there is nothing to select."""
    told = " ".join(invoke(rescore, "s-1", "--chain", "k").stderr.split())

    assert "leave it out" in told
    assert "--since" in told


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["s-1", "s-2"], id="named"),
        pytest.param(["s-1", "--yes", "--reason", "new prompt", "--criteria", "cli-tool-use"], id="named-in-full"),
        pytest.param(["--obsolete"], id="obsolete"),
        pytest.param(["--obsolete", "--chain", "k", "--since", "2026-01-01", "--yes"], id="obsolete-of-a-chain"),
        pytest.param(["--failed", "--error-kind", "refused", "--since", "2026-01-01"], id="failed-of-a-kind"),
        pytest.param(["--since", "2026-01-01", "--chain", "k", "--criteria", "cli-tool-use"], id="since-of-a-chain"),
    ],
)
def test_selectors_that_go_together(arguments: list[str]) -> None:
    """They get as far as the database."""
    assert was_let_through(invoke(rescore, *arguments))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param([], "Missing option '--since'", id="nothing"),
        pytest.param(["--since", ""], "'' is not a time", id="empty-time"),
        pytest.param(["--since", "2026-01-01", "--chain", ""], "--chain: it is empty", id="empty-chain"),
    ],
)
def test_a_backfill_that_cannot_be_meant(arguments: list[str], says: str) -> None:
    """An empty variable of a script is no wish for everything, and none for nothing."""
    ended = invoke(backfill, *arguments)

    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())


def test_a_backfill_that_can_be_meant() -> None:
    """It gets as far as the database."""
    assert was_let_through(invoke(backfill, "--since", "2026-01-01", "--chain", "k"))
