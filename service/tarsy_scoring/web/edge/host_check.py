"""
Refuses requests to other host names, and those that pages on other sites make browsers send.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from tarsy_scoring.config.hosts import Hosts, address_of
from tarsy_scoring.web.edge.problems import Problem

DEFAULT_PORTS = {"http": 80, "https": 443}
SECURE_SCHEMES = ("https", "wss")  # some proxies forward the second for a WebSocket


def require_host(hosts: Hosts, connection: HTTPConnection, *, is_proxied: bool) -> None:
    """
    Refuse a request to another host. A proxy may name the host that the client asked for.

    Raises:
        Problem: 403.
    """
    if not all(host in hosts for host in asked_hosts(connection, is_proxied=is_proxied)):
        raise Problem(
            403,
            "Not this host",
            "this API answers only to the host names of SCORING_API_HOSTS, by default those of loopback: use "
            "one of them, or ask an operator to add this one",
        )


def asked_hosts(connection: HTTPConnection, *, is_proxied: bool) -> list[str]:
    """
    The hosts that a request names: those that a trusted proxy forwards, else `Host`; may be none.
    """
    headers = connection.headers
    if is_proxied and (forwarded := headers.getlist("x-forwarded-host")):
        return [host.strip() for host in ",".join(forwarded).split(",")]
    return headers.getlist("host")


def require_same_site(connection: HTTPConnection, *, is_proxied: bool) -> None:
    """
    Refuse requests that a page on another site makes a browser send (CSRF).

    Programs that are not browsers send neither `Sec-Fetch-Site` nor `Origin`, and pass. Browsers send the
    first on secure connections, and the second with every change and every WebSocket.

    Raises:
        Problem: 403, a page on another site sent the request.
    """
    headers = connection.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    # Believed from every peer: it can only refuse more, and no page can make a browser send it.
    is_secure = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() in SECURE_SCHEMES
    hosts = asked_hosts(connection, is_proxied=is_proxied)
    is_ours = _is_origin_of(origin, hosts, is_secure=is_secure)
    if connection.scope["type"] == "websocket" and origin is not None:
        # Some browsers send a wrong `Sec-Fetch-Site` with a WebSocket. So the origin decides, if the scheme
        # is known to be right as well.
        if is_ours and (is_secure or site != "cross-site"):
            return
    # Otherwise `Sec-Fetch-Site` is preferred, since it works without our host name.
    elif site in ("same-origin", "none") or (site is None and (origin is None or is_ours)):
        return
    raise Problem(
        403, "Another site", "a page of another site sent this request: use the pages of this service"
    )


def _is_origin_of(origin: str | None, hosts: Iterable[str], *, is_secure: bool) -> bool:
    """
    Whether an origin is among these hosts.

    Args:
        is_secure: The browser used TLS. Without TLS anyone on the way may have written a page.
    """
    if origin is None:
        return False
    try:
        parts = urlsplit(origin)
        default = DEFAULT_PORTS[parts.scheme]
        asked = [urlsplit(f"//{host}") for host in hosts if host]
        is_known = any(
            (h.hostname, h.port or default) == (parts.hostname, parts.port or default) for h in asked
        )
        return is_known and (parts.scheme == "https" or not is_secure)
    except (ValueError, KeyError):
        return False  # `null`, another scheme, or not a URL


# --- names and addresses -------------------------------------------------------------------------------


def peer_address(connection: HTTPConnection) -> IPv4Address | IPv6Address | None:
    """Address of the peer, an IPv4-mapped one as IPv4; None for a peer without one, such as a Unix socket."""
    return address_of(connection.client.host) if connection.client else None
