"""
What every route works with: the service's parts, who is asking, and how a refusal is told.

Built once in `app.create_app`, found again through the request; routes hold nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from starlette.requests import HTTPConnection

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.missing_tools.demand import Looks
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.records.scores import Reader
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import TimelineSource

Scope = Literal["read", "score"]


@dataclass(frozen=True, slots=True)
class Site:
    """The service as the routes see it. `source` is None where no timeline source is configured."""

    settings: Settings
    registry: CriteriaRegistry
    inbox: Inbox
    leases: Leases
    reader: Reader
    metrics: Metrics
    source: TimelineSource | None

    @property
    def policy(self) -> Policy:
        return self.inbox.policy


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Who asks.

    Args:
        name: Forwarded user or e-mail, the name of a token, or `api-client`.
        scopes: `score` includes `read`.
        address: Where somebody comes from whom nobody named; None: the name says who it is.
    """

    name: str
    scopes: frozenset[Scope]
    address: str | None = None

    @property
    def identity(self) -> str:
        """Tells callers apart: the name, for the unnamed with their address. No name holds a line break."""
        return self.name if self.address is None else f"{self.name}\n{self.address}"


class Problem(Exception):
    """
    A refusal, told as RFC 9457 problem details.

    Args:
        title: Short and the same for the same kind of problem.
        detail: What was asked, why it is refused, what would help.
        extra: More members of the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def malformed(where: Sequence[str | int], why: str, title: str = "Malformed request") -> Problem:
    """A request that is not as it must be, told as every 422 is: where (`body`, `query` or `header` first) and why."""
    return Problem(422, title, why, extra={"errors": [{"loc": list(where), "msg": why}]})


@dataclass(slots=True)
class Served:
    """What belongs to a running application beside its site; `gateway` is None until there is one."""

    site: Site
    gateway: Gateway | None = None
    looks: Looks = field(default_factory=Looks)
    exports: int = 0
    """Exports under way."""


def served(connection: HTTPConnection) -> Served:
    """What the application of this request was built with."""
    return cast(Served, connection.app.state.served)


def site_of(connection: HTTPConnection) -> Site:
    """The site, for `Depends`."""
    return served(connection).site
