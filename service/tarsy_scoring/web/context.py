"""Parts that all routes share."""

from dataclasses import dataclass, field
from functools import partial
from typing import cast

from starlette.requests import HTTPConnection

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore

MAX_ANALYTIC_REQUESTS = 24  # at once; four for each connection, so that none waits long for one
# Sessions read for pages, at once. The largest (SCORING_MAX_SESSION_BYTES) takes several times more memory
# while it is read, masked and shown.
SESSION_READS = 2, 14  # at once, and waiting
MAX_EXPORTS = 4  # at once; an export lasts as long as the reader takes, and needs a connection for each batch


@dataclass(slots=True, eq=False)
class AppContext:
    """
    Parts that the routes use; one per application.

    Args:
        analytics: Reads over many scores, in a separate pool.
        source: None where no timeline source is configured.
        gateway: None where the process serves no WebSockets.
        analytic_requests: Held by each request that reads many scores until the answer has been sent.
        session_reads: Held by each page while it reads a session from the source.
        exports: Held by each export until the last byte has been sent.
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
    analytic_requests: BoundedSemaphore = field(
        default_factory=partial(BoundedSemaphore, MAX_ANALYTIC_REQUESTS)
    )
    session_reads: BoundedSemaphore = field(default_factory=partial(BoundedSemaphore, *SESSION_READS))
    exports: BoundedSemaphore = field(default_factory=partial(BoundedSemaphore, MAX_EXPORTS))

    @property
    def policy(self) -> Policy:
        """The admission rules in force."""
        return self.inbox.policy


def context_of(connection: HTTPConnection) -> AppContext:
    """The context that the application of this request was created with."""
    return cast(AppContext, connection.app.state.context)
