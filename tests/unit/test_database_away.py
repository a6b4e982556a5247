"""Messages about a database that cannot be used name its place and a remedy, never the user or password."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
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


def test_valid_urls_are_accepted() -> None:
    for url in (
        url_to("db/scores?sslmode=verify-full&application_name=tarsy-scoring"),
        url_to("one:1,[::1]:65535,two/scores"),
        "postgresql:///scores?host=/run/postgresql",
    ):
        check_url(url, "SCORING_DATABASE_URL")


async def test_invalid_urls_are_refused() -> None:
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
            await Database(url_to(place), "public", pool_size=1).open()

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


async def nothing(_connection: Connection) -> None:
    return None


async def test_the_message_says_why_a_database_is_away() -> None:
    """The server's own message is not quoted, since it may name the user."""
    table = [
        (OSError("Multiple exceptions: [Errno 111] ..."), "Multiple exceptions: "),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known; correct the host"),
        (TimeoutError(), "no answer in time"),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "TLS: self-signed certificate"),
        (ConnectionError("PostgreSQL server at db rejected SSL upgrade"), "it rejected SSL"),
        (asyncpg.TooManyConnectionsError(f'too many connections for role "{USER}"'), "no more connections"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "starting up"),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), "a statement took too long"),
        (asyncpg.AdminShutdownError("terminating connection"), "it was shut down"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE"), "it is read-only"),
        (asyncpg.DeadlockDetectedError(f"process of {USER} waits"), "DeadlockDetectedError; a retry may succeed"),
        (asyncpg.InternalClientError("got result for unknown state"), "the connection broke"),
        (ConnectionError("unexpected connection_lost() call"), "the connection broke; start PostgreSQL there"),
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


async def test_a_closed_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused, and no other process takes it
        port = taken.getsockname()[1]
        database = Database(url_to(f"127.0.0.1:{port}/scores"), "public", pool_size=1)
        await database.open()

        with pytest.raises(DatabaseAway) as away_error:
            await database.once(nothing)

        await database.close()
    assert str(away_error.value).startswith(
        f"the database at 127.0.0.1:{port}/scores is away: connection refused; start"
    )


async def test_a_setting_that_the_driver_refuses_is_a_configuration_error() -> None:
    wrong = asyncpg.ClientConfigurationError(f"No such TLS version: x;password={PASSWORD}\nHINT: more")
    database = FailingDatabase(wrong)

    with pytest.raises(ConfigurationError) as away_error:
        async with asyncio.timeout(10):
            await database.persist(nothing)

    assert str(away_error.value) == "SCORING_DATABASE_URL, db.internal:6432/scores: No such TLS version"


async def test_a_setting_that_worked_before_is_no_configuration_error() -> None:
    """A certificate file may be missing while it is replaced."""
    gone = asyncpg.ClientConfigurationError('root certificate file "/tls/ca.crt" does not exist')
    database = FailingDatabase(None, gone, None)

    await database.once(nothing)
    with pytest.raises(DatabaseAway):
        await database.once(nothing)
    await database.once(nothing)
