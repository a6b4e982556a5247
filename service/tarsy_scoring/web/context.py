"""The two objects that routes share: the parts of the service (`AppContext`) and the caller of a request."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from starlette.requests import HTTPConnection

from tarsy_scoring.audit.audit import Origin
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring.web.places import Places

if TYPE_CHECKING:
    from tarsy_scoring.web.tokens import Token

Scope = Literal["read", "score"]
ALL_SCOPES: frozenset[Scope] = frozenset({"read", "score"})
READ_ONLY: frozenset[Scope] = frozenset({"read"})
MAX_ANALYTIC_REQUESTS = 24  # at once; four for each connection, so that none waits long for one
# Sessions read for pages, at once. A session of SCORING_MAX_SESSION_BYTES takes several times its size while
# it is read, masked and shown.
MAX_SESSION_READS, MAX_SESSION_READS_WAITING = 2, 14
MAX_EXPORTS = 4  # at once; an export lasts as long as its reader takes, and needs a connection for each batch


@dataclass(slots=True, eq=False)
class AppContext:
    """
    Parts of the service that the routes use; one per application.

    Args:
        analytics: Reads over many scores, in a pool of their own.
        source: None where no timeline source is configured.
        gateway: None where the process serves no WebSockets.
        analytic_requests: Held by each request that reads many scores until its answer has been sent.
        session_reads: Held by each page while it reads a session from the source.
        exports: Held by each export until its last byte has been sent.
    """

    settings: Settings
    registry: CriteriaRegistry
    inbox: Inbox
    leases: Leases
    reader: Reader
    analytics: Reader
    metrics: Metrics
    source: TimelineSource | None
    gateway: Gateway | None = None
    analytic_requests: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_ANALYTIC_REQUESTS)
    )
    session_reads: Places = field(
        default_factory=lambda: Places(MAX_SESSION_READS, MAX_SESSION_READS_WAITING)
    )
    exports: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_EXPORTS))

    @property
    def policy(self) -> Policy:
        """The admission rules in force."""
        return self.inbox.policy


@dataclass(frozen=True, slots=True)
class Caller:
    """
    The caller of a request, as `Access` identified it.

    Args:
        name: Forwarded user, the name of a token, or `api-client`.
        scopes: `score` includes `read`.
        address: Client address of anonymous callers; None for named ones.
        origin: Door and address of the request, for the audit record.
        token: The token that the request carries; None: none.
    """

    name: str
    scopes: frozenset[Scope]
    address: str | None = None
    origin: Origin = field(default=Origin(), compare=False)
    token: "Token | None" = field(default=None, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """Key that is unique per caller: the name, or for an anonymous caller the name and the address."""
        # A name holds no line break, so no named caller can have the key of an anonymous one.
        return self.name if self.address is None else f"{self.name}\n{self.address}"


def context_of(connection: HTTPConnection) -> AppContext:
    """The context that the application of this request was created with."""
    return cast(AppContext, connection.app.state.context)
