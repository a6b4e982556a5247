"""Driver errors: which mean that the database is unavailable, and what an operator can do about each."""

import asyncio
import socket
import ssl

import asyncpg

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.url import place_of

# Every error of the driver. For databases whose schema and grants belong to others, where any of them is
# possible. InternalClientError includes the moment of a fail-over in which no server matches
# `target_session_attrs`.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncpg.InternalClientError)

# Errors after which the same work may succeed later.
# Unavailable: refused, cut, starting up, shutting down, read-only after a fail-over, too slow, disk full.
# Transient: a deadlock, a serialization failure, a plan from before a migration.
UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.InternalClientError,
)

_BROKEN = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# Type, description and advice; the first match counts. Without a description the error's own text is used.
_DESCRIPTIONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str | None, str], ...] = (
    (TimeoutError, "no answer in time", "is it running and the network open?"),
    (ConnectionRefusedError, "connection refused", "start PostgreSQL there, or correct SCORING_DATABASE_URL"),
    (FileNotFoundError, "its socket, or a file named in the URL, does not exist", "correct SCORING_DATABASE_URL"),
    (socket.gaierror, None, "correct the host in SCORING_DATABASE_URL"),
    (ssl.SSLError, None, "check its TLS certificate and sslmode in SCORING_DATABASE_URL"),
    (OSError, None, "start PostgreSQL there, or correct SCORING_DATABASE_URL"),
    (asyncpg.CannotConnectNowError, "it is starting up or shutting down", "wait for it"),
    (asyncpg.QueryCanceledError, "a statement took too long", "look for locks and for load on the server"),
    (asyncpg.OperatorInterventionError, "it was shut down, or an operator ended the connection", "wait for it"),
    (asyncpg.TooManyConnectionsError, "it takes no more connections", "raise max_connections, or run fewer workers"),
    (
        asyncpg.ReadOnlySQLTransactionError,
        "it is read-only",
        "wait for the end of a fail-over or of maintenance; if there is none, check that SCORING_DATABASE_URL leads to "
        "the primary and that default_transaction_read_only is off",
    ),
    (asyncpg.DiskFullError, "its disk is full", "free space there"),
    (_BROKEN, "the connection broke", "wait for it, or check the network"),
)


def why_away(error: Exception) -> str:
    """Describe a failure and what would help, without the server's own message, which may name the user."""
    # The driver raises a plain ConnectionError for this, so only its text tells it from other connection
    # errors.
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return "it rejected SSL; turn ssl on there, or correct SCORING_DATABASE_URL and its sslmode"
    for kind, description, advice in _DESCRIPTIONS:
        if isinstance(error, kind):
            return f"{description or _own_text(error)}; {advice}"
    return f"{type(error).__name__}; a retry may succeed"


def misconfigured(url: str, error: asyncpg.ClientConfigurationError) -> ConfigurationError:
    """The error for a URL that the driver cannot interpret; retrying would not help."""
    reason = str(error).partition("\n")[0].partition(": ")[0]  # the rest may quote the URL
    return ConfigurationError(f"SCORING_DATABASE_URL, {place_of(url)}: {reason}")


def _own_text(error: Exception) -> str:
    """The text of TLS or of the operating system for an error; the type of any other error."""
    if isinstance(error, ssl.SSLError):
        reason = (getattr(error, "reason", None) or "").replace("_", " ").lower()
        return f"TLS: {getattr(error, 'verify_message', None) or reason or error.strerror}"
    if isinstance(error, ConnectionError) and error.strerror is None:
        return "the connection broke"  # the driver's own text names one of its functions
    return (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__
