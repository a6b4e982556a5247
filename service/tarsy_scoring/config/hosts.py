"""
Host names that our servers answer to, and addresses in text.

A site can make a name resolve to our address (DNS rebinding). Its pages would then have the same origin as
ours, so only configured names are answered.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from tarsy_scoring.errors import ConfigurationError

_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")


class Hosts:
    """
    Host names in `SCORING_API_HOSTS`; loopback names and addresses if it is empty.

    Raises:
        ConfigurationError: An entry is not a host name.
    """

    def __init__(self, text: str) -> None:
        names = [part.strip() for part in text.split(",") if part.strip()]
        self._names = frozenset(_checked(name) for name in names)

    def __contains__(self, host: str) -> bool:
        """Whether a `Host` header has one of the names, with any port."""
        name = _name_of(host)
        return name in self._names if self._names else is_loopback(name)

    def allow_scrape(self, host: str) -> bool:
        """
        Whether metrics are given to a caller that asks this `Host`: also addresses, by which Prometheus finds
        pods, and no site can make one its own.
        """
        name = _name_of(host)
        return host in self or is_loopback(name) or address_of(name) is not None


def is_loopback(host: str) -> bool:
    """Whether a server on `host` is reachable from this machine only. Resolves no name but localhost."""
    name = host.strip("[]").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = address_of(name)
    return address is not None and address.is_loopback


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """An address in text, an IPv4-mapped one as IPv4; None: it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _name_of(host: str) -> str:
    """
    The name in a `Host` header, without port, brackets, the dot at the end and capitals; "": there is none.
    """
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").removesuffix(".") if parts.netloc == host and "@" not in host else ""
    except ValueError:
        return ""


def _checked(name: str) -> str:
    bare = name.strip("[]").lower().removesuffix(".")
    if address_of(bare) is None and not _HOST_NAME.fullmatch(bare):
        raise ConfigurationError(
            f"SCORING_API_HOSTS: {name!r} is not a host name: give names or addresses without scheme, port "
            "and path, separated by commas"
        )
    return bare
