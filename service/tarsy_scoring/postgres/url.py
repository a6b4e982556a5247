"""PostgreSQL URLs: check them without connecting, and show them without secrets."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from tarsy_scoring.errors import ConfigurationError

# URL options for which the driver would refuse a wrong value at every connection attempt.
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "prefer-standby", "read-write", "read-only"),
}
# URL options that name a file. Without the file the driver fails as if the server were unreachable.
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


UrlSource = Callable[[], str]
"""Gives the URL for each new connection, because its user or password may change."""


def url_source(url: str | UrlSource) -> UrlSource:
    """The source itself, or one that always gives this URL."""
    return url if callable(url) else lambda: url


def check_url(url: str, variable: str) -> None:
    """
    Reject a PostgreSQL URL that can never work, without connecting.

    A service that waits for the database would otherwise wait for ever.

    Args:
        variable: The setting that holds the URL, for the message.

    Raises:
        ConfigurationError: Names the variable and never quotes the URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.netloc.count("@") > 1:
        raise ConfigurationError(
            f"{variable}: not a URL; write special characters of user and password as %XX, such as %40 for @"
        )
    _check_ports(parts.netloc.rpartition("@")[2], variable)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    # Messages below never quote a value: after a wrong separator it may contain the password.
    for name, allowed in _CHOICES.items():
        if name in options and options[name] not in allowed:
            raise ConfigurationError(f"{variable}: there is no such {name}; give one of {', '.join(allowed)}")
    for name in _FILES:
        if path := options.get(name):
            _check_file(path, name, variable)


def _check_ports(hosts: str, variable: str) -> None:
    for host in hosts.split(","):
        port = host.rpartition(":")[2]
        if ":" in host and port.isdecimal() and not 0 < int(port) < 2**16:
            raise ConfigurationError(f"{variable}: {port} is no port; give one between 1 and 65535")


def _check_file(path: str, option: str, variable: str) -> None:
    try:
        Path(path).open("rb").close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid file name"
        raise ConfigurationError(f"{variable}: cannot read the file of {option}: {why}") from None


def place_of(url: str) -> str:
    """Hosts, ports and database name of a PostgreSQL URL, without user, password and other options."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts:
        hosts = options.get("host", "localhost") + (f":{options['port']}" if "port" in options else "")
    database = unquote(parts.path).lstrip("/") or options.get("dbname")
    return f"{hosts}/{database}" if database else hosts
