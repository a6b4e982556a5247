"""What is said of a database that cannot be used: where it is and what would help, never who we are there."""

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


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (url_to("db.internal:6432/scores"), "db.internal:6432/scores"),
        ("postgresql://db.internal/scores", "db.internal/scores"),
        (url_to("db.internal"), "db.internal"),
        (url_to("one:1,two:2/scores?target_session_attrs=read-write"), "one:1,two:2/scores"),
        (url_to("[::1]:5432/scores"), "[::1]:5432/scores"),
        (f"postgresql:///scores?host=/run/postgresql&user={USER}&password={PASSWORD}", "/run/postgresql/scores"),
        (f"postgresql:///?host=db.internal&port=6432&dbname=scores&user={USER}", "db.internal:6432/scores"),
        (f"postgresql://{USER}:p%40ss@db.internal/sco%20res?password={PASSWORD}", "db.internal/sco res"),
        ("postgresql:///scores", "localhost/scores"),
    ],
)
def test_place_of_a_url(url: str, place: str) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize(
    "url",
    [
        *(url_to(f"db/scores?sslmode={m}") for m in ("disable", "allow", "prefer", "require", "verify-ca")),
        url_to("db/scores?sslmode=verify-full&application_name=tarsy-scoring"),
        url_to("one:1,[::1]:65535,two/scores"),
        "postgresql:///scores?host=/run/postgresql",
    ],
)
def test_urls_that_may_work(url: str) -> None:
    check_url(url, "SCORING_DATABASE_URL")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (url_to("db/scores?sslmode=nonsense"), "no such sslmode; give one of disable, allow"),
        (url_to("db/scores?application_name=x&sslmode="), "no such sslmode"),
        *(
            (url_to(f"db/scores?{option}=/nowhere/{PASSWORD}"), f"cannot read the file of {option}: No such file")
            for option in ("sslrootcert", "sslcert", "sslkey", "sslcrl")
        ),
        (url_to("db/scores?sslmode=verify-full&sslrootcert=%00"), "the file of sslrootcert: not a valid file name"),
        (url_to(f"db/scores?sslmode=disable;password={PASSWORD}"), "no such sslmode"),
        (url_to("db:0/scores"), "0 is no port"),
        (url_to("one:1,db:65536/scores"), "65536 is no port"),
        (url_to("db/scores?target_session_attrs=writable"), "no such target_session_attrs; give one of any, primary"),
        (f"postgresql://{USER}:{PASSWORD}[@db/scores", "write special characters"),
        (f"postgresql://{USER}:{PASSWORD}@more@db/scores", "write special characters"),
    ],
)
async def test_urls_that_can_never_work(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        await Database(url, "public", pool_size=1).open()

    message = str(told.value)
    assert message.startswith("SCORING_DATABASE_URL: ")
    assert says in message
    assert USER not in message
    assert PASSWORD not in message


# --- away ----------------------------------------------------------------------------------------------


class FailingDatabase(Database):
    """Fails like this instead of connecting."""

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


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused", "start PostgreSQL there, or correct"),
        (OSError("Multiple exceptions: [Errno 111] ..."), "Multiple exceptions", "correct SCORING_DATABASE_URL"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known", "the host in SCORING_DATA"),
        (TimeoutError(), "no answer in time", "is it running and the network open"),
        (FileNotFoundError(2, "No such file or directory"), "its socket, or a file", "correct SCORING_DATABASE"),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "self-signed certificate", "TLS"),
        (
            ConnectionError("PostgreSQL server at db rejected SSL upgrade"),
            "rejected SSL",
            "correct SCORING_DATABASE_URL",
        ),
        (asyncpg.TooManyConnectionsError(f'too many connections for role "{USER}"'), "no more connections", "raise"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "starting up", "wait"),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), "took too long", "locks"),
        (asyncpg.ConnectionDoesNotExistError("connection was closed"), "the connection broke", "network"),
        (asyncpg.AdminShutdownError("terminating connection"), "shut", "wait"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE"), "read-only", "primary"),
        (asyncpg.DiskFullError("could not extend file"), "disk is full", "free space"),
        (asyncpg.DeadlockDetectedError(f"process of {USER} waits"), "DeadlockDetectedError", "retry"),
        (asyncpg.InterfaceError("connection is closed"), "the connection broke", "network"),
        (asyncpg.InternalClientError("got result for unknown state"), "the connection broke", "network"),
        (ConnectionError("unexpected connection_lost() call"), "away: the connection broke", "start PostgreSQL there"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer", "start PostgreSQL there"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_a_database_that_is_away(error: Exception, reason: str, advice: str) -> None:
    """The server's own message may name the user, so it stays out."""
    with pytest.raises(DatabaseAway) as told:
        await FailingDatabase(error).once(nothing)

    message = str(told.value)
    assert message.startswith("the database at db.internal:6432/scores is away: ")
    assert reason in message
    assert advice in message
    assert USER not in message
    assert PASSWORD not in message
    assert told.value.__cause__ is error


async def test_nobody_listens_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's
        port = taken.getsockname()[1]
        database = Database(url_to(f"127.0.0.1:{port}/scores"), "public", pool_size=1)
        await database.open()

        with pytest.raises(DatabaseAway) as told:
            await database.once(nothing)

        await database.close()
    assert str(told.value).startswith(f"the database at 127.0.0.1:{port}/scores is away: connection refused; start")


async def test_what_the_driver_cannot_mean_is_a_configuration_error() -> None:
    wrong = asyncpg.ClientConfigurationError(f"No such TLS version: x;password={PASSWORD}\nHINT: more")
    database = FailingDatabase(wrong)

    with pytest.raises(ConfigurationError) as told:
        async with asyncio.timeout(10):
            await database.persist(nothing)

    assert str(told.value) == "SCORING_DATABASE_URL, db.internal:6432/scores: No such TLS version"


async def test_what_worked_once_is_not_the_configuration() -> None:
    """A certificate file may be missing while it is replaced."""
    gone = asyncpg.ClientConfigurationError('root certificate file "/tls/ca.crt" does not exist')
    database = FailingDatabase(None, gone, None)

    await database.once(nothing)
    with pytest.raises(DatabaseAway):
        await database.once(nothing)
    await database.once(nothing)
