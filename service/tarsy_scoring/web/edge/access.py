"""
Authenticates and authorizes callers: bearer tokens, users named by a trusted proxy, or open access.

`RequestMiddleware` calls `Access.admit` before it reads a body or calls a route, so every route is guarded.
"""

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date
from typing import Annotated, cast

import structlog
from fastapi import Depends
from starlette.requests import HTTPConnection

from tarsy_scoring.audit.audit import ChangeOrigin
from tarsy_scoring.config.hosts import Hosts, address_of, is_loopback
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.caller import ALL_SCOPES, Caller
from tarsy_scoring.web.edge.host_check import peer_address, require_host, require_same_site
from tarsy_scoring.web.edge.problems import CHALLENGE, REFUSALS, Problem, unauthorized
from tarsy_scoring.web.edge.proxies import Forwarded, TrustedProxies
from tarsy_scoring.web.edge.rates import Rates
from tarsy_scoring.web.edge.tokens import Token, TokensFile, sent_token, utc_today

log = structlog.get_logger()


ANONYMOUS = "api-client"
SIGN_IN = "/sign-in"
OPEN_TO_ALL = re.compile(rf"{SIGN_IN}|/static/.*")  # with a tokens file
UNCHANGING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
THROUGH_PROXY = "come through the proxy that signs users in"
ADVICE = (
    "configure access: SCORING_API_TOKENS_FILE for bearer tokens, SCORING_TRUSTED_PROXIES and "
    "SCORING_TRUSTED_PROXY_SECRET for proxies that sign users in, or SCORING_API_OPEN=true to admit every "
    "client; or keep SCORING_API_HOST=127.0.0.1"
)


async def admitted(connection: HTTPConnection) -> Caller:
    """The caller. The middleware has refused changes by a caller who may only read."""
    return cast(Caller, connection.state.caller)


async def may_analyse(connection: HTTPConnection) -> AsyncIterator[Caller]:
    """
    The caller, who may read many scores. Holds a place for such requests until the answer is sent.

    Raises:
        QueueFull: Every place is taken. Nothing waits for a place: requests that wait would count as under
            way, and the overall limit would then refuse every kind.
    """
    async with context_of(connection).analytic_requests.hold():
        yield cast(Caller, connection.state.caller)


# Parameter types for routes: FastAPI passes the admitted caller.
Admitted = Annotated[Caller, Depends(admitted)]
Analysing = Annotated[Caller, Depends(may_analyse)]


class Access:
    """
    Access rules in this process.

    With a tokens file, a caller needs a valid token or a user name from a trusted proxy. A request with both
    acts under the proxy's user name and the token's scope. A token that is sent must be valid, whatever else
    the request has. The page that takes a token into a cookie is open, and so is its style; the cookie counts
    as the token of a request that has neither a token nor a user. With trusted proxies alone, a request
    through a proxy needs a user name. Other requests are admitted without a name only on loopback or with
    `SCORING_API_OPEN`. In every mode a request must name a host in `SCORING_API_HOSTS`.

    Args:
        monotonic: Clock for the rate limits, in s.
        today: The day in UTC, by which tokens expire.

    Raises:
        ConfigurationError: The API would listen beyond loopback without a rule, or a rule cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self._proxies = TrustedProxies(settings)
        self._tokens = TokensFile(settings.api_tokens_file, today) if settings.api_tokens_file else None
        self._hosts = Hosts(settings.api_hosts)
        self._is_local = is_loopback(settings.api_host)
        self._is_open = settings.api_open
        self._changes = Rates(settings.api_rate_per_minute, monotonic)
        if not (self._is_local or self._proxies or self._tokens or self._is_open):
            raise ConfigurationError(
                f"the API would listen on {settings.api_host}, beyond this machine, without access control: "
                f"{ADVICE}"
            )

    def admit(self, connection: HTTPConnection) -> Caller:
        """
        Identify the caller and check that the request is allowed.

        Raises:
            Problem: 400, 401 or 403; 429 for changes beyond the caller's rate.
        """
        is_from_proxy = self._proxies.include(peer_address(connection))
        forwarded = self._proxies.identify(connection.headers) if is_from_proxy else None
        require_host(self._hosts, connection, is_proxied=forwarded is not None)
        caller = self._caller(connection, forwarded, is_from_proxy=is_from_proxy)
        caller = replace(
            caller, origin=replace(caller.origin, address=_client_address(connection, forwarded))
        )
        changes = connection.scope.get("method", "GET") not in UNCHANGING_METHODS
        if changes or connection.scope["type"] == "websocket":
            require_same_site(connection, is_proxied=forwarded is not None)
        if changes:
            if "score" not in caller.scopes:
                detail = (
                    "this caller may only read: ask an operator for a token or a group with the scope score"
                )
                challenge = f'{CHALLENGE}, error="insufficient_scope", scope="score"'
                raise Problem(403, "Not allowed", detail, headers={"WWW-Authenticate": challenge})
            self._changes.count(caller.identity)
        return caller

    def require_token(self, token: bytes) -> None:
        """Raises: Problem: 401, no valid token; 404, this API takes no tokens."""
        if self._tokens is None:
            raise Problem(404, *REFUSALS[404])
        self._find_entry(self._tokens, token)

    def is_revoked(self, caller: Caller) -> bool:
        """Whether the token of an admitted caller has been removed or changed, or has expired since."""
        tokens, used = self._tokens, caller.credential
        return tokens is not None and used is not None and not tokens.has(used)

    def _caller(
        self, connection: HTTPConnection, forwarded: Forwarded | None, *, is_from_proxy: bool
    ) -> Caller:
        """Apply the rules of the class to one request. Raises: Problem: 401."""
        path: str = connection.scope["path"]
        if self._tokens is not None and OPEN_TO_ALL.fullmatch(path):
            # A sign-in is a change, which `admit` counts by address.
            return Caller(ANONYMOUS, ALL_SCOPES, _client_address(connection, forwarded), ChangeOrigin("open"))
        if self._tokens is not None:
            return self._token_caller(connection, self._tokens, forwarded)
        if forwarded is not None and forwarded.user is not None:
            return Caller(forwarded.user, forwarded.scopes, origin=ChangeOrigin("proxy"))
        # Also on loopback: a proxy on this machine may let every client through to some paths.
        if forwarded is not None or not (self._is_open or (self._is_local and not is_from_proxy)):
            raise unauthorized(f"this API identifies callers by a proxy: {THROUGH_PROXY}")
        # Anonymous callers are distinguished by their address.
        return Caller(ANONYMOUS, ALL_SCOPES, str(peer_address(connection)), ChangeOrigin("open"))

    def _token_caller(
        self, connection: HTTPConnection, tokens: TokensFile, forwarded: Forwarded | None
    ) -> Caller:
        user = forwarded.user if forwarded else None
        is_bearer_used = forwarded is not None and forwarded.is_bearer_used
        token = None if is_bearer_used else sent_token(connection, is_signed_in=user is not None)
        if token is None and forwarded is not None and user is not None:
            # Signed in at the proxy; a browser has no token.
            return Caller(user, forwarded.scopes, origin=ChangeOrigin("proxy"))
        entry = self._find_entry(tokens, token)
        origin = ChangeOrigin(f"token {entry.name}")
        if forwarded is None or user is None:
            return Caller(entry.name, entry.scopes, origin=origin, credential=entry.credential, kind="token")
        return Caller(user, entry.scopes & forwarded.scopes, origin=origin, credential=entry.credential)

    def _find_entry(self, tokens: TokensFile, token: bytes | None) -> Token:
        entry = tokens.find(token) if token else None
        if entry is None:
            otherwise = f", or {THROUGH_PROXY}" if self._proxies else ""
            raise unauthorized(
                "the bearer token is not valid, or has expired: check it, or ask an operator for another"
                if token
                else f"this API needs a bearer token: send Authorization: Bearer TOKEN{otherwise}",
                CHALLENGE + (', error="invalid_token"' if token else ""),
            )
        return entry


def _client_address(connection: HTTPConnection, forwarded: Forwarded | None) -> str | None:
    """The address of the peer, or the one that a trusted proxy has added to the forwarded ones."""
    peer = peer_address(connection)
    if forwarded is not None and (passed := ",".join(connection.headers.getlist("x-forwarded-for"))):
        peer = address_of(passed.rpartition(",")[2].strip()) or peer
    return str(peer) if peer else None
