"""
Posts requests to the HTTP endpoint of one provider.

They go through `aiohttp`, over which the official client would send them as well: two calls with a prompt of
100 KB
take 0.4 instead of 1.2 ms of CPU. URL and headers are those of that client, except for those that describe
it; a test
compares them. Its import takes 0.9 s of CPU and 25 MB, so only `doctor` uses it.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from tarsy_scoring import __version__
from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.config.urls import proxy_of_environment
from tarsy_scoring.config.watched_secret import WatchedSecret, current
from tarsy_scoring.errors import ConfigurationError

CONNECT_TIMEOUT_S = 10.0
# A reply may have this many bytes for each token of max_reply_tokens, and as many as an error page or the
# text of a judge that reasons may add. The longest tokens of common models have some 16 characters, the usual
# one has 4.
REPLY_BYTES_PER_TOKEN = 8
REPLY_BYTES_MORE = 1024 * 1024
KEEPALIVE_S = 4.0  # many endpoints run on uvicorn, which closes idle connections after 5 s
# The official client reads them for every endpoint.
VARIABLES = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers (looked up in any case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class UnreadableReply(Exception):
    """A reply whose bytes are not read, or not read to their end."""


class _Body(aiohttp.BytesPayload):
    """A body that is forgotten once it is written, because a judge takes seconds to minutes to answer."""

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await super().write_with_length(writer, content_length)
        self._value = b""


class Connection:
    """
    The connections to one provider, opened at the first request. Safe for concurrent use in one event loop.

    Args:
        api_key: One from a file is read again when the file changes; None for an endpoint without keys.
        connections: Upper limit of simultaneous connections.

    Raises:
        ConfigurationError: Key, headers, proxy or CA file cannot be used.
    """

    def __init__(
        self, provider: str, settings: ProviderSettings, api_key: str | WatchedSecret | None, connections: int
    ) -> None:
        self._api_key = api_key
        _require_header_text(f"providers.{provider}: the key", current(api_key) or "")
        for header, value in settings.extra_headers.items():
            _require_header_text(f"providers.{provider}.extra_headers.{header}", value)
        for variable in VARIABLES.values():
            _require_header_text(variable, os.environ.get(variable, ""))
        self._provider = provider
        self._url = URL(f"{settings.base_url}/chat/completions")
        self._headers = _headers(settings)
        self._connections = connections
        self._proxy = _proxy(provider, settings)
        self._tls = _tls(provider, settings)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, reply_tokens: int) -> Reply:
        """
        Send a JSON body, and read the reply up to its limit. Of an unreadable error only the status is kept.

        Args:
            reply_tokens: The tokens that the judge may write, which set the limit.

        Raises:
            UnreadableReply: A success is compressed or too long.
            aiohttp.ClientError, OSError: There is no reply, or it breaks off.
        """
        if self._session is None:
            self._session = self._open()
        key = current(self._api_key)
        # An operator's own header overrides.
        headers = (
            None if key is None or "Authorization" in self._headers else {"Authorization": f"Bearer {key}"}
        )
        most_bytes = REPLY_BYTES_MORE + REPLY_BYTES_PER_TOKEN * reply_tokens
        content, fault = bytearray(), None
        sent = _Body(body)
        del body
        # Session data must not leave for a host that the operator did not configure, so redirects are not
        # followed.
        async with self._session.post(
            self._url, data=sent, headers=headers, allow_redirects=False
        ) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                fault = "compressed its reply, although Accept-Encoding asks it not to: switch compression off there"
            else:
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > most_bytes:
                        fault = (
                            f"sent more than {most_bytes} bytes ({REPLY_BYTES_PER_TOKEN} for each of {reply_tokens} "
                            f"reply tokens, and {REPLY_BYTES_MORE}); if its replies are so long, raise "
                            f"providers.{self._provider}.max_reply_tokens"
                        )
                        break
            reply = Reply(response.status, response.headers, b"" if fault else bytes(content))
            if fault is not None:
                response.close()  # nothing more of it is read
        if fault is not None and reply.is_success:
            raise UnreadableReply(fault)
        return reply

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=KEEPALIVE_S, ssl=self._tls
            ),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            proxy=self._proxy or proxy_of_environment(str(self._url)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )


def _headers(settings: ProviderSettings) -> CIMultiDict[str]:
    """The headers of every request, except for the key."""
    headers = CIMultiDict({"Accept": "application/json", "Content-Type": "application/json"})
    headers["User-Agent"] = f"tarsy-scoring/{__version__}"
    headers.update({header: os.environ[name] for header, name in VARIABLES.items() if os.environ.get(name)})
    headers.update(settings.extra_headers)  # the operator's own headers override
    # 400 KB of gzip can become 2 GB. Replies are short, so that compressing them saves nothing.
    headers["Accept-Encoding"] = "identity"
    return headers


def _require_header_text(what: str, value: str) -> None:
    if not (value.isascii() and value.isprintable()):
        raise ConfigurationError(
            f"{what} contains a character that is not allowed in a header, such as a line break"
        )


def _proxy(provider: str, settings: ProviderSettings) -> URL | None:
    if settings.proxy is None:
        return None
    try:
        proxy = URL(settings.proxy)
    except ValueError:
        proxy = URL()
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise ConfigurationError(
            f"providers.{provider}.proxy: expected http://host:port or https://host:port"
        )
    return proxy


def _tls(provider: str, settings: ProviderSettings) -> ssl.SSLContext | bool:
    if settings.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "the file contains no certificate"
        raise ConfigurationError(
            f"providers.{provider}.ca_file: cannot use {settings.ca_file}: {reason}"
        ) from None
