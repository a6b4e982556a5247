"""
Sends a message to the address of a destination, and tells what its answer means.

Redirects are not followed and no body is read: a message goes to the host that the operator configured, and
nothing
comes back but a status. Errors name the destination and never its address, which may be a secret.
"""

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus

import aiohttp

from tarsy_scoring import __version__
from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.config.urls import proxy_of_environment
from tarsy_scoring.deliveries.messages import Message
from tarsy_scoring.errors import ConfigurationError

DEADLINE_S = 10.0
LONGEST_WAIT_S = 45.0  # between two tries, also if a destination asks for more
# These say nothing about one message: the address, the secret or the access is wrong, so every message waits
# until it is corrected. Others of 400 to 499 refuse one message for good.
OF_EVERY_MESSAGE = {401, 402, 403, 404, 405, 407, 408, 410, 421, 425, 429}


class DestinationAway(Exception):
    """
    The destination takes no message right now, or none at this address; the same message may be sent again.

    Args:
        after_s: Seconds that it asks to wait for; None: it does not say.
    """

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class MessageRefused(Exception):
    """The destination refuses this message for good; others may be taken."""


class Sender:
    """
    The connections to one destination, opened at the first message.

    Args:
        address: Gives the address as it is now.

    Raises:
        ConfigurationError: The CA file cannot be used.
    """

    def __init__(self, name: str, destination: DestinationSettings, address: Callable[[], str]) -> None:
        self.address = address
        self.tls = tls_of(name, destination)
        self._http: aiohttp.ClientSession | None = None

    async def send(self, message: Message) -> None:
        """
        Send one message, within `DEADLINE_S`.

        Raises:
            DestinationAway: It may or may not have arrived; send it again.
            MessageRefused: Sending it again is useless.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                status, asked = await self._post(message)
        except TimeoutError:
            raise DestinationAway(f"it gave no answer within {DEADLINE_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Without the error's text and cause, which hold the address.
            raise DestinationAway(f"it could not be reached, or broke off ({type(error).__name__})") from None
        if 200 <= status < 300:
            return
        words = f"it answered {status}"
        if 300 <= status < 400:
            raise DestinationAway(
                f"{words}, and redirects are not followed: configure the address that it leads to"
            )
        if status in OF_EVERY_MESSAGE or not 400 <= status < 500:
            raise DestinationAway(words, asked)
        raise MessageRefused(words)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _post(self, message: Message) -> tuple[int, float | None]:
        if self._http is None:
            self._http = self._open()
        url = self.address() + message.path
        async with self._http.post(
            url,
            data=message.body,
            headers=message.headers,
            proxy=proxy_of_environment(url),
            allow_redirects=False,
        ) as response:
            response.close()  # without reading the body
            return response.status, _asked_wait_s(response)

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, force_close=True, ssl=self.tls),
            headers={"Content-Type": "application/json", "User-Agent": f"tarsy-scoring/{__version__}"},
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def _asked_wait_s(response: aiohttp.ClientResponse) -> float | None:
    """The seconds of `Retry-After`, within bounds; None where it has none, or a date."""
    given = response.headers.get("Retry-After", "")
    is_asked = response.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    if not (is_asked and given.isascii() and given.isdigit() and len(given) < 10):
        return None
    return min(float(given), LONGEST_WAIT_S)


def tls_of(name: str, destination: DestinationSettings) -> ssl.SSLContext | bool:
    """
    Which certificates are trusted, as aiohttp takes it. Raises: ConfigurationError: The CA file cannot be
    used.
    """
    if destination.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=destination.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "the file contains no certificate"
        raise ConfigurationError(
            f"destinations.{name}.ca_file: cannot use {destination.ca_file}: {reason}"
        ) from None
