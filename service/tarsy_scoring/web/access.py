"""
Authentication and authorization of callers: bearer tokens, users named by a trusted proxy, or open access.

`RequestMiddleware` calls `Access.admit` before it reads a body or calls a route, so that a route without a
check is guarded as well. Routes get the admitted caller from `may_read` and `may_score`.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, cast
from urllib.parse import urlsplit

import structlog
from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.context import Caller, Scope, context_of
from tarsy_scoring.web.problems import ANALYTIC_RETRY_S, Problem
from tarsy_scoring.web.rates import Rates, too_many_changes, too_many_reads
from tarsy_scoring.web.tokens import NAME_MAX, TokensFile, is_name

log = structlog.get_logger()

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANONYMOUS = "api-client"
ALL_SCOPES: frozenset[Scope] = frozenset({"read", "score"})
UNCHANGING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED_NAMES = ("x-forwarded-user", "x-forwarded-email")  # in order of preference
CHALLENGE = 'Bearer realm="tarsy-scoring"'
DEFAULT_PORTS = {"http": 80, "https": 443}
THROUGH_PROXY = "come through the proxy that signs users in"
ADVICE = (
    "configure access: SCORING_API_TOKENS_FILE for bearer tokens, SCORING_TRUSTED_PROXIES for proxies that "
    "authenticate, or SCORING_API_OPEN=true to admit every client; or keep SCORING_API_HOST=127.0.0.1"
)


async def may_read(connection: HTTPConnection) -> Caller:
    """The caller; every admitted caller may read."""
    return cast(Caller, connection.state.caller)


async def may_score(connection: HTTPConnection) -> Caller:
    """The caller, who may request changes. Raises: Problem: 403, this caller may only read."""
    caller = cast(Caller, connection.state.caller)
    _require_scope(caller)
    return caller


async def may_analyse(connection: HTTPConnection) -> AsyncIterator[Caller]:
    """
    The caller, who may read many scores. Holds one of the places for such requests until the answer is sent.

    Raises:
        Problem: 503, every place is taken. Nothing waits for a place: requests that wait would count as under
            way, and the limit of all requests would then refuse requests of every kind.
    """
    places = context_of(connection).analytic_requests
    if places.locked():
        retry = {"Retry-After": str(ANALYTIC_RETRY_S)}
        detail = "too many requests that read many scores are under way: try again shortly"
        raise Problem(503, "Too many readers", detail, headers=retry)
    async with places:
        yield cast(Caller, connection.state.caller)


# Parameter types of routes: FastAPI passes the admitted caller.
Reading = Annotated[Caller, Depends(may_read)]
Analysing = Annotated[Caller, Depends(may_analyse)]
Scoring = Annotated[Caller, Depends(may_score)]


class Access:
    """
    The access rules of one process.

    With a tokens file, a caller needs a valid token or a user name from a trusted proxy. A request with both
    acts under the proxy's user name and the token's scope. A token that is sent must be valid, whatever else
    the request has. With trusted proxies alone, a caller needs a user name from one of them. With neither,
    the API admits every client, and starts only on loopback or with `SCORING_API_OPEN`.

    Args:
        monotonic: Clock of the rate limits, in s.

    Raises:
        ConfigurationError: The API would listen beyond loopback without a rule, or a rule cannot be read.
    """

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._proxies = trusted_proxies(settings.trusted_proxies)
        self._tokens = TokensFile(settings.api_tokens_file) if settings.api_tokens_file else None
        self._is_local = is_loopback(settings.api_host)
        self._is_open = settings.api_open
        self._rates = Rates(settings.api_rate_per_minute, monotonic)
        self._reads = Rates(settings.api_read_rate_per_minute, monotonic)
        if not (self._is_local or self._proxies or self._tokens or self._is_open):
            raise ConfigurationError(
                f"the API would listen on {settings.api_host}, beyond this machine, without access control: {ADVICE}"
            )
        if self._tokens and self._is_open:
            log.warning("api.open_has_no_effect", reason="SCORING_API_TOKENS_FILE is set: every caller needs a token")
        for network in self._proxies:
            if network.prefixlen == 0:
                log.warning(
                    "api.trusts_everybody",
                    network=str(network),
                    effect="every client of this API can claim to be any user",
                    advice="limit SCORING_TRUSTED_PROXIES to the addresses of the proxies",
                )

    def admit(self, connection: HTTPConnection) -> Caller:
        """
        Identify the caller and check that the request is allowed.

        The middleware counts a change once more, over all processes (`FleetRates`); the count here spares the
        database the changes of a caller that is far too fast.

        Raises:
            Problem: 400, 401 or 403; 429 for changes or reads beyond the caller's rate.
        """
        peer = peer_address(connection)
        is_proxied = peer is not None and any(peer in network for network in self._proxies)
        user = forwarded_user(connection.headers) if is_proxied else None
        caller = self._caller(connection, user, is_proxied)
        changes = is_change(connection)
        if changes or connection.scope["type"] == "websocket":
            _require_same_site(connection, is_proxied)
        if changes:
            _require_scope(caller)
            if (wait_s := self._rates.take(caller.identity)) > 0:
                raise too_many_changes(self._rates.per_minute, wait_s)
        # The gateway bounds WebSockets.
        elif connection.scope["type"] == "http" and (wait_s := self._reads.take(caller.identity)) > 0:
            raise too_many_reads(self._reads.per_minute, wait_s)
        return caller

    def _caller(self, connection: HTTPConnection, user: str | None, is_proxied: bool) -> Caller:
        """Apply the rules of the class to one request. Raises: Problem: 401; 403 for another host name."""
        if self._tokens is not None:
            token = bearer_token(connection.headers)
            if token is None and user is not None:
                return Caller(user, ALL_SCOPES)  # signed in at the proxy; a browser has no token
            entry = self._tokens.find(token) if token else None
            if entry is None:
                otherwise = f", or {THROUGH_PROXY}" if self._proxies else ""
                raise _unauthorized(
                    "the bearer token is not valid: check it, or ask an operator for another"
                    if token
                    else f"this API needs a bearer token: send Authorization: Bearer TOKEN{otherwise}",
                    CHALLENGE + (', error="invalid_token"' if token else ""),
                )
            return Caller(user or entry.name, entry.scopes)
        if user is not None:
            return Caller(user, ALL_SCOPES)
        if not (self._is_open or self._is_local):
            raise _unauthorized(f"this API identifies callers by a proxy: {THROUGH_PROXY}")
        if self._is_local and not (self._is_open and is_proxied):
            _require_local_name(connection)
        # Anonymous callers are distinguished by their address.
        return Caller(ANONYMOUS, ALL_SCOPES, str(peer_address(connection)))


def is_change(connection: HTTPConnection) -> bool:
    """Whether a request asks for a change, by its method."""
    return connection.scope.get("method", "GET") not in UNCHANGING_METHODS


# --- addresses -----------------------------------------------------------------------------------------


def trusted_proxies(text: str) -> tuple[Network, ...]:
    """
    The networks of `SCORING_TRUSTED_PROXIES`: CIDRs or single addresses, separated by commas.

    Raises:
        ConfigurationError: One of them is not a CIDR.
    """
    networks = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        try:
            network = ip_network(part)
        except ValueError as error:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXIES: {part!r} is not a CIDR such as 10.0.0.0/8: {error}"
            ) from None
        mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
        # `peer_address` converts IPv4-mapped addresses to IPv4, so networks of them are converted as well.
        if mapped is not None and network.prefixlen >= 96:
            network = IPv4Network((mapped, network.prefixlen - 96))
        networks.append(network)
    return tuple(networks)


def is_loopback(host: str) -> bool:
    """Whether a server on `host` is reachable from this machine only. Resolves no name but localhost."""
    name = host.strip("[]").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def peer_address(connection: HTTPConnection) -> Address | None:
    """Address of the peer, an IPv4-mapped one as IPv4; None for a peer without one, such as a Unix socket."""
    return _address(connection.client.host) if connection.client else None


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


# --- headers -------------------------------------------------------------------------------------------


def forwarded_user(headers: Headers) -> str | None:
    """
    The user that a proxy names, else the e-mail address; None: neither header has a value.

    Raises:
        Problem: 400, the header has several values, one of which the client may have sent, or is not a usable
            name.
    """
    for header in FORWARDED_NAMES:
        values = {value.strip() for value in headers.getlist(header)} - {""}
        if not values:
            continue
        name = _utf8(values.pop())
        # A proxy that joins two header lines puts ", " between them. A directory name such as CN=a,OU=b has
        # no blank.
        if values or ", " in name or not is_name(name):
            raise Problem(
                400,
                "Bad forwarded user",
                f"{header} must appear once and hold one name of 1-{NAME_MAX} visible characters, without a comma "
                "followed by a blank: configure the proxy to replace the header that clients send",
            )
        return name
    return None


def bearer_token(headers: Headers) -> bytes | None:
    """The token of the `Authorization` header; None: there is no bearer token, or there are several headers."""
    values = headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


def _utf8(value: str) -> str:
    """A header value decoded as UTF-8; an invalid one becomes NUL, which no name may contain."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return "\0"


def _require_scope(caller: Caller) -> None:
    if "score" not in caller.scopes:
        raise Problem(
            403,
            "Not allowed",
            "this token may only read: ask an operator for a token with the scope score",
            headers={"WWW-Authenticate": f'{CHALLENGE}, error="insufficient_scope", scope="score"'},
        )


def _require_same_site(connection: HTTPConnection, is_proxied: bool) -> None:
    """
    Refuse requests that a page of another site makes a browser send (CSRF).

    Programs that are not browsers send neither `Sec-Fetch-Site` nor `Origin`, and pass. Browsers send the
    first on secure connections, and the second with every change and every WebSocket.

    Raises:
        Problem: 403, a page of another site sent the request.
    """
    # `Sec-Fetch-Site` is preferred, since it needs no knowledge of our own host name, except for WebSockets,
    # where some browsers set it wrongly.
    headers = connection.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if connection.scope["type"] == "websocket" and origin is not None:
        site = None
    if site in ("same-origin", "none") or (site is None and origin is None):
        return
    hosts = [headers.get("host", "")]
    if is_proxied:
        hosts += [host.strip() for host in headers.get("x-forwarded-host", "").split(",")]
    if site is None and origin is not None and _is_origin_of(origin, hosts):
        return
    raise Problem(403, "Another site", "a page of another site sent this request; only pages of this service may")


def _is_origin_of(origin: str, hosts: Iterable[str]) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        asked = [urlsplit(f"//{host}") for host in hosts if host]
        return any((h.hostname, h.port or DEFAULT_PORTS[parts.scheme]) == (parts.hostname, port) for h in asked)
    except (ValueError, KeyError):
        return False  # `null`, another scheme, or not a URL


def _require_local_name(connection: HTTPConnection) -> None:
    """
    Refuse host names other than those of loopback (DNS rebinding).

    A site can make its own name resolve to our address. Its pages would then have the same origin as ours.

    Raises:
        Problem: 403, the request names another host.
    """
    host = connection.headers.get("host")
    if host is None:
        return
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        raise Problem(
            403,
            "Not this host",
            "this API listens on loopback and answers to localhost and 127.0.0.1 only: use one of these names; to use "
            f"another name, {ADVICE}",
        )


def _unauthorized(detail: str, challenge: str | None = None) -> Problem:
    """A 401. Args: challenge: None where no credentials in the request would help."""
    # A peer that reads no refusals would otherwise fill the buffer of its connection with them.
    headers = {"Connection": "close"} | ({"WWW-Authenticate": challenge} if challenge else {})
    return Problem(401, "Not authenticated", detail, headers=headers)
