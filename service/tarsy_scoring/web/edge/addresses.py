"""Addresses in text, and whether they are of this machine."""

from ipaddress import IPv4Address, IPv6Address, ip_address


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
