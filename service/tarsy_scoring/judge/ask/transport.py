"""
HTTP transport for judge calls: bounds what an endpoint may send, and checks proxy, CA file and headers.

The `openai` client reads every body whole, error bodies included, so the bound sits below it.
"""

import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx2

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.config.urls import proxy_of_environment
from tarsy_scoring.errors import ConfigurationError

CONNECT_TIMEOUT_S = 10.0
# The longest tokens of common models have some 16 characters. The rest is for error pages and for models that
# send their reasoning.
REPLY_BYTES_PER_TOKEN = 16
REPLY_BYTES_MORE = 1024 * 1024
KEEPALIVE_S = 4.0  # many endpoints run on uvicorn, which closes idle connections after 5 s
# A judge may think for minutes, in which proxies and firewalls drop connections that look idle, some after a minute.
KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if sys.platform == "linux":
    KEEP_ALIVE += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    ]


class UnreadableReply(Exception):
    """A reply that is compressed or too long. The bytes are not read, or not to the end."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """
    Reads each body up to `most_bytes`, and no compressed one: 400 KB gzip can become 400 MB.

    An unreadable success raises `UnreadableReply`. An unreadable error keeps the status, which decides the
    reaction, and the body as far as it was read. A cancellation closes the connection.

    A request takes the connection that was used last. A pool would look at each of its connections for each request:
    with 200 of them that took 0.9 of 2.7 ms of CPU per call.

    Args:
        connect: Makes a transport with one connection: now, and whenever all others are in use.
    """

    def __init__(self, connect: Callable[[], httpx2.AsyncBaseTransport], most_bytes: int) -> None:
        self._connect = connect
        self._opened = [connect()]  # now, because the first one imports its library, for 40 ms
        self._idle = [*self._opened]
        self._most_bytes = most_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; the body is read later, by the client."""
        request.headers["Accept-Encoding"] = "identity"
        connection = self._idle.pop() if self._idle else self._open()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            self._idle.append(connection)
            raise
        most_bytes = self._most_bytes
        fault = f"sent more than {most_bytes} bytes; if its replies are so long, raise max_reply_tokens"
        if response.headers.pop("Content-Encoding", "identity") != "identity":
            most_bytes = 0
            fault = "compressed its reply, although Accept-Encoding asks it not to: switch compression off"
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        fault_if_read = fault if response.is_success else None
        give_back = partial(self._idle.append, connection)
        response.stream = _BoundedBody(response.stream, most_bytes, fault_if_read, give_back)
        return response

    def _open(self) -> httpx2.AsyncBaseTransport:
        self._opened.append(self._connect())
        return self._opened[-1]

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            await connection.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """Ends after `most_bytes`: with an error where there is a fault to report, else silently."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, most_bytes: int, fault: str | None, done: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._left = most_bytes
        self._fault = fault
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0:
                if self._fault:
                    raise UnreadableReply(self._fault)
                return
            yield piece

    async def aclose(self) -> None:
        """Close the body; its connection serves the next request. Safe to call twice."""
        try:
            await self._inner.aclose()
        finally:
            done, self._done = self._done, _nothing
            done()


def _nothing() -> None: ...


def connector(provider: str, settings: ProviderSettings) -> Callable[[], httpx2.AsyncHTTPTransport]:
    """
    What opens transports with one connection to one provider; each connects at its first request.

    Raises:
        ConfigurationError: Proxy or CA file cannot be used.
    """
    return partial(
        httpx2.AsyncHTTPTransport,
        verify=_tls(provider, settings),
        proxy=_proxy(provider, settings),
        limits=httpx2.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_S),
        socket_options=KEEP_ALIVE,
    )


def require_header_text(what: str, value: str) -> None:
    """Refuse a value that no header can carry. Raises: ConfigurationError."""
    if not (value.isascii() and value.isprintable()):
        raise ConfigurationError(
            f"{what} contains a character that is not allowed in a header, such as a line break"
        )


def _proxy(provider: str, settings: ProviderSettings) -> str | None:
    if settings.proxy is None:
        return proxy_of_environment(settings.base_url)
    try:
        proxy = httpx2.URL(settings.proxy)
    except httpx2.InvalidURL:
        proxy = httpx2.URL()
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise ConfigurationError(
            f"providers.{provider}.proxy: expected http://host:port or https://host:port"
        )
    return settings.proxy


def _tls(provider: str, settings: ProviderSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "the file contains no certificate"
        raise ConfigurationError(
            f"providers.{provider}.ca_file: cannot use {settings.ca_file}: {reason}"
        ) from None
