"""
Opens the configured destinations: each with its address and secrets, which are read again when they change.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.config.secrets import WatchedSecret, current, read_destination_secret
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.deliveries.messages import Message, langfuse_messages, slack_message, webhook_message
from tarsy_scoring.deliveries.notices import Notice, is_notified_of, takes_score
from tarsy_scoring.deliveries.sender import Sender, tls_of
from tarsy_scoring.errors import ConfigurationError, SettingMissing, errors_of

LEAST_SECRET = 16  # characters of the key of signatures
SLACK_LINES = 20  # notices in one message of a channel, which takes about one message a second


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination of the configuration, ready to send to; connects to nothing before its first message."""

    name: str
    settings: DestinationSettings
    sender: Sender
    secret: str | WatchedSecret | None = field(repr=False)
    public_url: str | None

    @property
    def batch(self) -> int:
        """Notices that one message may hold."""
        return SLACK_LINES if self.settings.type == "slack" else 1

    @property
    def is_record(self) -> bool:
        """Whether it keeps scores, however old; people are notified of new ones alone."""
        return self.settings.type == "langfuse"

    def wants(self, notice: Notice) -> bool:
        """Whether something is sent about the notice."""
        return (takes_score if self.is_record else is_notified_of)(notice, self.settings)

    def messages(self, notices: Sequence[Notice]) -> list[Message]:
        """The messages about notices that it wants, at most `batch`, signed now."""
        if self.settings.type == "slack":
            return [slack_message(notices, self.public_url)]
        [notice] = notices
        secret = current(self.secret) or ""  # required at the start
        if self.settings.type == "langfuse":
            return langfuse_messages(notice, self.settings, secret, self.public_url)
        return [webhook_message(notice, self.settings, secret, int(time.time()), self.public_url)]


def open_destinations(
    settings: Settings, environ: Mapping[str, str], names: Iterable[str] | None = None
) -> list[Destination]:
    """
    Destinations, in the order of the file; connects to nothing.

    Args:
        names: Default: all.

    Raises:
        SettingMissing, ConfigurationError: The first that is found; see `destination_errors`.
    """
    return [
        _open(name, settings, environ) for name in (settings.config.destinations if names is None else names)
    ]


def destination_errors(settings: Settings, environ: Mapping[str, str]) -> list[ConfigurationError]:
    """
    Every address, secret and CA file of the destinations that is missing (`SettingMissing`) or cannot be
    used.
    """
    checks: list[Callable[[], object]] = []
    for name, wanted in settings.config.destinations.items():
        checks += [partial(read, name, settings, environ) for read in (_read_address, _read_secret)]
        checks.append(partial(tls_of, name, wanted))
    return errors_of(*checks)


def addresses(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The addresses of destinations that are set, by name. Raises: ConfigurationError: One is wrong."""
    found: dict[str, str] = {}
    for name in settings.config.destinations:
        with contextlib.suppress(SettingMissing):
            found[name] = current(_read_address(name, settings, environ)) or ""
    return found


def _open(name: str, settings: Settings, environ: Mapping[str, str]) -> Destination:
    wanted = settings.config.destinations[name]
    secret, address = _read_secret(name, settings, environ), _read_address(name, settings, environ)
    sender = Sender(name, wanted, lambda: current(address) or "")
    return Destination(name, wanted, sender, secret, settings.public_url)


def _read_secret(name: str, settings: Settings, environ: Mapping[str, str]) -> str | WatchedSecret | None:
    """The secret of a destination; None: its type has none. Raises: see `open_destinations`."""
    wanted = settings.config.destinations[name]
    if wanted.type == "slack":
        return None
    secret = read_destination_secret(settings, name, "secret", environ)
    if wanted.type == "webhook" and len(current(secret) or "") < LEAST_SECRET:
        raise ConfigurationError(f"destinations.{name}: its secret is shorter than {LEAST_SECRET} characters")
    return secret


def _read_address(name: str, settings: Settings, environ: Mapping[str, str]) -> str | WatchedSecret:
    """The address of a destination, never quoted in an error. Raises: see `open_destinations`."""
    wanted = settings.config.destinations[name]
    if wanted.base_url is not None:
        return wanted.base_url
    address = read_destination_secret(settings, name, "url", environ)
    _require_address(f"destinations.{name}", wanted, current(address) or "")
    return address


def _require_address(where: str, wanted: DestinationSettings, url: str) -> None:
    """Raises: ConfigurationError: It is no address; never quotes it."""
    schemes = ("https",) if wanted.type == "slack" else ("https", "http")
    try:
        place = urlsplit(url)
        is_fit = (
            place.scheme in schemes and bool(place.hostname) and place.port != 0 and "@" not in place.netloc
        )
    except ValueError:
        is_fit = False
    if not (is_fit and url.isascii() and url.isprintable() and " " not in url):
        raise ConfigurationError(
            f"{where}: its address is no {schemes[0]}://host/path without user and password"
        )
