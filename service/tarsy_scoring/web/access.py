"""
Who is asking: somebody with a token, a user whom a trusted proxy names, or anybody where that was chosen.

`Access.admit` is asked about every request before a route sees it, its body included; so a route that forgets to
ask is guarded all the same. `may_read` and `may_score` tell a route what was found.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)
from typing import cast
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.limits.token_bucket import TokenBucket
from tarsy_scoring.web.context import Caller, Scope
from tarsy_scoring.web.problems import Problem
from tarsy_scoring.web.tokens import NAME_MAX, TokensFile, is_name

log = structlog.get_logger()

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANYBODY = "api-client"
EVERYTHING: frozenset[Scope] = frozenset({"read", "score"})
UNCHANGING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED_NAMES = ("x-forwarded-user", "x-forwarded-email")  # in this order
CHALLENGE = 'Bearer realm="tarsy-scoring"'
DEFAULT_PORTS = {"http": 80, "https": 443}
THROUGH_PROXY = "come through the proxy that signs people in"
ADVICE = (
    "say who may use it: SCORING_API_TOKENS_FILE for bearer tokens, SCORING_TRUSTED_PROXIES for proxies that "
    "authenticate, or SCORING_API_OPEN=true for everybody who can reach it; or keep SCORING_API_HOST=127.0.0.1"
)


async def may_read(connection: HTTPConnection) -> Caller:
    """Who asks; every caller that was admitted may read."""
    return cast(Caller, connection.state.caller)


async def may_score(connection: HTTPConnection) -> Caller:
    """Who asks for a change. Raises: Problem: 403, this caller may only read."""
    caller = cast(Caller, connection.state.caller)
    _require_scope(caller)
    return caller


class Access:
    """
    The rules of one process.

    A trusted proxy's user is let in, and so is who sends a token of the tokens file; a token that is sent must
    be a good one, and limits what may be done. Where neither is configured, whoever reaches an API that listens on
    loopback alone is let in, or one that is open on purpose.

    Args:
        monotonic: Clock of the rate limits, in s.

    Raises:
        ConfigurationError: It would listen beyond loopback without any rule, or a rule cannot be read.
    """

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._proxies = trusted_proxies(settings.trusted_proxies)
        self._tokens = TokensFile(settings.api_tokens_file) if settings.api_tokens_file else None
        self._is_local = is_loopback(settings.api_host)
        self._is_open = settings.api_open
        self._rates = Rates(settings.api_rate_per_minute, monotonic)
        if not (self._is_local or self._proxies or self._tokens or self._is_open):
            raise ConfigurationError(
                f"the API would listen on {settings.api_host}, beyond this machine, for everybody: {ADVICE}"
            )
        if self._tokens and self._is_open:
            log.warning("api.open_has_no_effect", reason="SCORING_API_TOKENS_FILE is set: everybody needs a token")
        for network in _joined(self._proxies):
            if network.prefixlen == 0:
                log.warning(
                    "api.trusts_everybody",
                    network=str(network),
                    effect="everybody who reaches this API can claim to be any user",
                    advice="set SCORING_TRUSTED_PROXIES to the addresses of the proxies alone",
                )

    def admit(self, connection: HTTPConnection) -> Caller:
        """
        Who asks, if they may ask for this.

        Raises:
            Problem: 400, 401 or 403; 429 for changes beyond the caller's rate.
        """
        peer = peer_address(connection)
        is_proxied = peer is not None and any(peer in network for network in self._proxies)
        user = forwarded_user(connection.headers) if is_proxied else None
        caller = self._caller(connection, user, is_proxied)
        is_change = connection.scope.get("method", "GET") not in UNCHANGING_METHODS
        if is_change or connection.scope["type"] == "websocket":
            _require_same_site(connection, is_proxied)
        if is_change:
            _require_scope(caller)
            self._take(caller.identity)
        return caller

    def _caller(self, connection: HTTPConnection, user: str | None, is_proxied: bool) -> Caller:
        if self._tokens is not None:
            token = bearer_token(connection.headers)
            if token is None and user is not None:
                return Caller(user, EVERYTHING)  # the proxy let them in: browsers have no tokens
            entry = self._tokens.find(token) if token else None
            if entry is None:
                otherwise = f", or {THROUGH_PROXY}" if self._proxies else ""
                raise _unauthorized(
                    "the bearer token is not one that is let in: look at it, or ask an operator for another"
                    if token
                    else f"this API asks for a bearer token: send Authorization: Bearer TOKEN{otherwise}",
                    CHALLENGE + (', error="invalid_token"' if token else ""),
                )
            return Caller(user or entry.name, entry.scopes)
        if user is not None:
            return Caller(user, EVERYTHING)
        if not (self._is_open or self._is_local):
            raise _unauthorized(f"this API takes nobody's own word for who they are: {THROUGH_PROXY}")
        if self._is_local and not (self._is_open and is_proxied):
            _require_local_name(connection)
        # Nobody named them, so they are told apart by where they come from.
        return Caller(ANYBODY, EVERYTHING, str(peer_address(connection)))

    def _take(self, key: str) -> None:
        wait_s = self._rates.take(key)
        if wait_s > 0:
            seconds = max(1, math.ceil(wait_s))
            raise Problem(
                429,
                "Too many requests",
                f"more changes than {self._rates.per_minute} a minute were asked for: try again in {seconds} s, or "
                "have SCORING_API_RATE_PER_MINUTE raised",
                headers={"Retry-After": str(seconds)},
            )


class Rates:
    """
    One token bucket per caller, which holds `per_minute` tokens and fills evenly.

    Memory is bounded: beyond `max_callers` the least recently active caller is forgotten and starts with a full
    bucket again.

    Args:
        monotonic: Clock, in s.
    """

    def __init__(self, per_minute: int, monotonic: Callable[[], float], max_callers: int = 10_000) -> None:
        self.per_minute = per_minute
        self._monotonic = monotonic
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, identity: str) -> float:
        """Take a token of this caller: 0.0; where there is none, the seconds until there is one."""
        now = self._monotonic()
        bucket = self._buckets.pop(identity, None) or TokenBucket(self.per_minute / 60, self.per_minute, now)
        self._buckets[identity] = bucket
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        return bucket.take(now)


# --- where a request comes from ------------------------------------------------------------------------


def trusted_proxies(text: str) -> tuple[Network, ...]:
    """
    The CIDRs of `SCORING_TRUSTED_PROXIES`; a bare address is itself alone.

    Raises:
        ConfigurationError: One of them is none.
    """
    networks = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        try:
            network = ip_network(part)
        except ValueError as error:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXIES: {part!r} is no CIDR such as 10.0.0.0/8: {error}"
            ) from None
        mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
        # ::ffff:10.0.0.0/104 means the same addresses as 10.0.0.0/8, and peers are told in the second way.
        if mapped is not None and network.prefixlen >= 96:
            network = IPv4Network((mapped, network.prefixlen - 96))
        networks.append(network)
    return tuple(networks)


def _joined(networks: Iterable[Network]) -> Iterator[Network]:
    """The same addresses in as few ranges as can be: two halves of everybody are everybody."""
    yield from collapse_addresses(n for n in networks if isinstance(n, IPv4Network))
    yield from collapse_addresses(n for n in networks if isinstance(n, IPv6Network))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches a server on `host`; names other than localhost are not looked up."""
    name = host.strip("[]").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def peer_address(connection: HTTPConnection) -> Address | None:
    """Who opened the connection, an IPv4 address written as IPv6 as what it is; None where that is no address."""
    return _address(connection.client.host) if connection.client else None


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


# --- what a request says -------------------------------------------------------------------------------


def forwarded_user(headers: Headers) -> str | None:
    """
    Whom a proxy names: the user, else the e-mail address; None: nobody.

    Raises:
        Problem: 400, it names several (one of them may be the client's own word), or what is no name. Two lines
            that were joined on the way have a comma and a blank between them; a name of a directory has no blank there.
    """
    for header in FORWARDED_NAMES:
        values = {value.strip() for value in headers.getlist(header)} - {""}
        if not values:
            continue
        name = _utf8(values.pop())
        if values or ", " in name or not is_name(name):
            raise Problem(
                400,
                "Bad forwarded user",
                f"{header} must be there once and hold one name of 1-{NAME_MAX} visible characters, without a comma "
                "and a blank in it: let the proxy replace what its clients send",
            )
        return name
    return None


def bearer_token(headers: Headers) -> bytes | None:
    """The token of the one `Authorization` header; None: there is none of this kind, or there are several."""
    values = headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


def _utf8(value: str) -> str:
    """A header's value as its sender meant it; what is not UTF-8 becomes what is no name."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return "\0"


def _require_scope(caller: Caller) -> None:
    if "score" not in caller.scopes:
        raise Problem(
            403,
            "Not allowed",
            "this token may only read: ask an operator for one with the scope score",
            headers={"WWW-Authenticate": f'{CHALLENGE}, error="insufficient_scope", scope="score"'},
        )


def _require_same_site(connection: HTTPConnection, is_proxied: bool) -> None:
    """
    Refuse what a page of another site makes a browser send; other programs send neither header and pass.

    Browsers tell `Sec-Fetch-Site` where the connection is secure, and `Origin` with every change and every
    WebSocket. The first needs no knowledge of our own name. Of WebSockets not all browsers tell it well, and all tell
    the second, so there the first counts only without the second.
    """
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
    raise Problem(403, "Another site", "a page of another site asked for this, and only our own pages may")


def _is_origin_of(origin: str, hosts: Iterable[str]) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        asked = [urlsplit(f"//{host}") for host in hosts if host]
        return any((h.hostname, h.port or DEFAULT_PORTS[parts.scheme]) == (parts.hostname, port) for h in asked)
    except (ValueError, KeyError):
        return False  # `null`, another scheme, or no URL


def _require_local_name(connection: HTTPConnection) -> None:
    """
    Refuse other names for this machine: a page can give its own site's name our address, and would then be let in
    as if it were ours.
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
            "this API listens on loopback alone and answers to localhost and 127.0.0.1 only: call it by one of these; "
            f"to make it known by another name, {ADVICE}",
        )


def _unauthorized(detail: str, challenge: str | None = None) -> Problem:
    """Args: challenge: None where nothing that the caller could send would help."""
    return Problem(401, "Not authenticated", detail, headers={"WWW-Authenticate": challenge} if challenge else {})
