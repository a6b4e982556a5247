"""Driver errors: whether the same work may succeed later, and what an operator can do about each."""

import ssl
from typing import Literal

import asyncpg

from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.postgres.url import place_of

# Every error of the driver. For databases whose schema and grants belong to others, where any of them is
# possible. InternalClientError includes the moment of a fail-over in which no server matches
# `target_session_attrs`, and a connection that the server ended between two statements.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncpg.InternalClientError)

Reaction = Literal["wait", "retry", "raise"]

# Server errors by SQLSTATE or class. What may last is looked up first.
_MAY_LAST = (
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout
    "26000",  # a pooler that does not track prepared statements, or lost them in a restart
    "42P05",  # likewise: another client of the pooler prepared a statement under this name
    "57014",  # canceled: by statement_timeout or by an operator
    "XX000",  # internal error
)
_PASSES = (
    "08",  # the connection broke
    "25006",  # read-only: maintenance or a fail-over
    "40",  # a deadlock or a serialization failure
    "53",  # disk, memory or connections are used up
    "55P03",  # lock_timeout
    "57",  # shutting down, starting up, terminated by an operator
    "58",  # an error of the operating system
)


def reaction_to(error: Exception) -> Reaction:
    """
    Decide what to do with work that failed with this error of the driver.

    Returns:
        `wait`: the cause passes; repeat the work without a limit. `retry`: the cause may last; repeat the
        work a limited number of times. `raise`: repeating does not help.
    """
    match error:
        # The driver has dropped the plan: it was made before a migration.
        case asyncpg.InvalidCachedStatementError():
            return "wait"
        # PostgreSQL refuses connections to the database, which is `ALLOW_CONNECTIONS false`. Statements that
        # fail with this state will fail again.
        case asyncpg.ObjectNotInPrerequisiteStateError(severity_en="FATAL"):
            return "wait"
        case asyncpg.PostgresError():
            state = error.sqlstate or ""
            return "retry" if state in _MAY_LAST else "wait" if state.startswith(_PASSES) else "raise"
        # The URL is checked before. A certificate file may be missing while it is replaced.
        case asyncpg.ClientConfigurationError():
            return "wait"
        # A use of a connection that has just been lost, and any wrong use of the driver.
        case asyncpg.InterfaceError():
            return "retry"
        case OSError() | asyncpg.InternalClientError():
            return "wait"
    return "raise"


# Errors of our own database that waiting cannot mend.
REFUSALS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)

# Type, with description and advice; the first match counts. Other errors are named by their type.
_DESCRIPTIONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (TimeoutError, "no answer in time; is it running and the network open?"),
    (ConnectionRefusedError, "connection refused; start PostgreSQL there, or correct {variable}"),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        "it refuses the user or the password; correct them in {variable}, or in its file",
    ),
    (asyncpg.InvalidCatalogNameError, "there is no such database; correct its name in {variable}"),
    (asyncpg.InsufficientPrivilegeError, "the user lacks a permission; grant it to the user in {variable}"),
    (asyncpg.ObjectNotInPrerequisiteStateError, "it accepts no connections; allow connections to it again"),
    (asyncpg.QueryCanceledError, "a statement took too long; look for load, and for missing indexes"),
    (
        asyncpg.ReadOnlySQLTransactionError,
        "it is read-only; wait for the end of a fail-over or of maintenance; if there is none, "
        "check that {variable} leads to the primary and that default_transaction_read_only is off",
    ),
    (
        (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError),
        "a prepared statement is missing or exists already; "
        "behind a pooler that does not track prepared statements, set {cache}=0",
    ),
    (asyncpg.InsufficientResourcesError, "it is short of disk, memory or connections; look in its log"),
    (asyncpg.OperatorInterventionError, "it is shut down, or starting up; wait for it"),
)


def why_away(error: Exception, variable: str = "SCORING_DATABASE_URL") -> str:
    """
    Describe a failure and what would help, without the server's own message, which may name the user.

    Args:
        variable: The setting that holds the URL.
    """
    for kind, words in _DESCRIPTIONS:
        if isinstance(error, kind):
            return words.format(variable=variable, cache=variable.replace("_URL", "_STATEMENT_CACHE"))
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", None) or error.strerror
        return f"TLS: {why}; check its TLS certificate and sslmode in {variable}"
    if isinstance(error, OSError):  # the driver raises plain ones, for example if a server rejects SSL
        return f"{error.strerror or error}; start PostgreSQL there, or correct {variable}"
    return f"{type(error).__name__}; wait for it, or look in its log"


def refused(place: str, error: Exception) -> StartRefused:
    """The error for one of `REFUSALS` by our database at `place`."""
    return StartRefused(f"the database at {place} refuses us: {why_away(error)}")


def misconfigured(url: str, error: asyncpg.ClientConfigurationError) -> ConfigurationError:
    """The error for a URL that the driver cannot interpret; retrying would not help."""
    reason = str(error).partition("\n")[0].partition(": ")[0]  # the rest may quote the URL
    return ConfigurationError(f"SCORING_DATABASE_URL, {place_of(url)}: {reason}")
