"""Messages about a database that cannot be used name its place and a remedy, never the user or password."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import asyncpg
import pytest
from structlog.testing import capture_logs

from tables import table
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres import transactions
from tarsy_scoring.postgres.database import SETTLED_S, TRIES, Connection, Database, DatabaseAway, DatabaseRefuses
from tarsy_scoring.postgres.failures import Reaction, reaction_to
from tarsy_scoring.postgres.url import check_url, place_of

USER, PASSWORD = "bob", "hunter2"


def url_to(place: str) -> str:
    return f"postgresql://{USER}:{PASSWORD}@{place}"


def test_place_of_a_url_has_no_credentials() -> None:
    table = {
        url_to("db.internal:6432/scores"): "db.internal:6432/scores",
        url_to("db.internal"): "db.internal",
        url_to("one:1,two:2/scores?target_session_attrs=read-write"): "one:1,two:2/scores",
        url_to("[::1]:5432/scores"): "[::1]:5432/scores",
        f"postgresql:///scores?host=/run/postgresql&user={USER}&password={PASSWORD}": "/run/postgresql/scores",
        f"postgresql:///?host=db.internal&port=6432&dbname=scores&user={USER}": "db.internal:6432/scores",
        f"postgresql://{USER}:p%40ss@db.internal/sco%20res?password={PASSWORD}": "db.internal/sco res",
        "postgresql:///scores": "localhost/scores",
    }
    assert {url: place_of(url) for url in table} == table


def test_invalid_urls_are_refused() -> None:
    """The message names the variable and never quotes the URL."""
    table = [
        ("db/scores?application_name=x&sslmode=", "no such sslmode; give one of disable, allow"),
        (f"db/scores?sslcert=/nowhere/{PASSWORD}", "cannot read the file of sslcert: No such file"),
        ("db/scores?sslmode=verify-full&sslrootcert=%00", "the file of sslrootcert: not a valid file name"),
        (f"db/scores?sslmode=disable;password={PASSWORD}", "no such sslmode"),
        ("db:0/scores", "0 is no port"),
        ("one:1,db:65536/scores", "65536 is no port"),
        ("db/scores?target_session_attrs=writable", "no such target_session_attrs; give one of any, primary"),
        ("[@db/scores", "write special characters"),
        ("more@db/scores", "write special characters"),
    ]
    for place, says in table:
        with pytest.raises(ConfigurationError) as refused:
            check_url(url_to(place), "SCORING_DATABASE_URL")

        message = str(refused.value)
        assert message.startswith("SCORING_DATABASE_URL: ")
        assert says in message
        assert USER not in message
        assert PASSWORD not in message


# --- away ----------------------------------------------------------------------------------------------


class FailingDatabase(Database):
    """A database whose transactions raise these errors in order; None succeeds."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__(url_to("db.internal:6432/scores"), "public", pool_size=1)
        self.errors = list(errors)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        if (error := self.errors.pop(0)) is not None:
            raise error
        yield None  # type: ignore[misc]


def server_error(state: str, severity: str = "ERROR") -> asyncpg.PostgresError:
    """An error as the driver builds it from a message of the server."""
    error: asyncpg.PostgresError = asyncpg.PostgresError.new({"C": state, "V": severity, "M": f"about {USER}"})
    return error


async def nothing(_connection: Connection) -> None:
    return None


async def test_the_message_says_why_a_database_is_away() -> None:
    """The server's own message is not quoted, since it may name the user."""
    table = [
        (OSError("Multiple exceptions: [Errno 111] ..."), "Multiple exceptions: "),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known; start"),
        (TimeoutError(), "no answer in time"),
        (ConnectionRefusedError(111, "refused"), "connection refused; start"),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "TLS: self-signed certificate"),
        (ConnectionError("PostgreSQL server at db rejected SSL upgrade"), "rejected SSL"),
        (
            asyncpg.TooManyConnectionsError(f'too many connections for role "{USER}"'),
            "short of disk, memory or connections",
        ),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "starting up"),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), "a statement took too long"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE"), "it is read-only"),
        (asyncpg.DeadlockDetectedError(f"process of {USER} waits"), "DeadlockDetectedError"),
        (server_error("42P05"), "set SCORING_DATABASE_STATEMENT_CACHE=0"),
        (server_error("55000", "FATAL"), "it accepts no connections"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer; start PostgreSQL there"),
    ]
    for error, says in table:
        with pytest.raises(DatabaseAway) as away:
            await FailingDatabase(error).once(nothing)

        message = str(away.value)
        assert message.startswith("the database at db.internal:6432/scores is away: ")
        assert says in message
        assert USER not in message
        assert PASSWORD not in message
        assert away.value.__cause__ is error


@table
def test_the_state_of_a_server_error_decides(reaction: Reaction, states: str) -> None:
    assert {state: reaction_to(server_error(state)) for state in states.split()} == dict.fromkeys(
        states.split(), reaction
    )


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (server_error("55000", "FATAL"), "wait"),
        (asyncpg.InvalidCachedStatementError("a table has changed"), "wait"),
        (asyncpg.ClientConfigurationError("the certificate file is being replaced"), "wait"),
        (asyncpg.TargetServerAttributeNotMatched("no primary"), "wait"),
        (ConnectionRefusedError(), "wait"),
        (TimeoutError(), "wait"),
        (asyncpg.InterfaceError("connection is closed"), "retry"),
        (asyncpg.InternalClientError("got result for unknown protocol state 3"), "wait"),
        (ValueError(), "raise"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_with_another_meaning_than_its_state(error: Exception, reaction: Reaction) -> None:
    assert reaction_to(error) == reaction


async def test_work_that_fails_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures that pass by themselves do not count, and end the row of those that do."""
    monkeypatch.setattr(database_module, "RETRY_MIN_S", 0.0)
    failures = [server_error("57014")] * (TRIES - 1)
    database = FailingDatabase(*failures, *[ConnectionRefusedError()] * 100, *failures, None, *failures, None)

    await database.persist(nothing)
    await database.persist(nothing)
    database.errors = [*failures, server_error("XX000")]
    with pytest.raises(DatabaseRefuses, match=rf"InternalServerError; .*; this was tried {TRIES} times"):
        await database.persist(nothing)


async def test_an_outage_is_logged_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts until no work has failed for a while: one locked row does not stop the other writers."""
    now_s = 1000.0
    monkeypatch.setattr(database_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    database = FailingDatabase()

    async def works(*errors: Exception | None) -> None:
        nonlocal now_s
        for error in errors:
            database.errors = [error]
            with database.patience():
                await database.once(nothing)
            now_s += 1.0

    with capture_logs() as lines:
        await works(None, server_error("55P03"), None, TimeoutError(), server_error("55P03"), None)
        assert [line["event"] for line in lines] == ["database.away"]
        now_s += SETTLED_S
        await works(None, None, server_error("57P03"))

    assert [(line["event"], line.get("away_s")) for line in lines] == [
        ("database.away", None),
        ("database.back", 3.0),
        ("database.away", None),
    ]


async def test_a_setting_that_the_driver_refuses_is_a_configuration_error() -> None:
    wrong = asyncpg.ClientConfigurationError(f"No such TLS version: x;password={PASSWORD}\nHINT: more")
    database = FailingDatabase(wrong)

    with pytest.raises(ConfigurationError) as away_error:
        async with asyncio.timeout(10):
            await database.persist(nothing)

    assert str(away_error.value) == "SCORING_DATABASE_URL, db.internal:6432/scores: No such TLS version"


async def test_an_end_that_cannot_be_had_closes_the_connection() -> None:
    """The failure before it is what the caller has to know."""
    for error in (asyncpg.InternalClientError("unknown protocol state"), TimeoutError()):
        connection = AsyncMock(terminate=Mock(), execute=AsyncMock(side_effect=error))
        await transactions._await_end(connection, "ROLLBACK;")
        connection.terminate.assert_called_once()
