"""Adds TLS to a PostgreSQL without it: a proxy that speaks the server's side of TLS and nothing else."""

import asyncio
import ssl
from urllib.parse import urlencode, urlsplit, urlunsplit

from listening import Listening, join

# Length and code of the message by which a client asks for TLS. Source: PostgreSQL's documentation, SSLRequest.
SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)


class TlsProxy(Listening):
    """
    Carries TLS connections to a server that has none.

    The embedded PostgreSQL is built without TLS, and the tests are about the client's side.

    Args:
        context: The server's certificate, and whether clients must present one.
    """

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        super().__init__()
        self._target = urlsplit(url)
        self._context = context

    def url(self, host: str = "127.0.0.1", **options: object) -> str:
        """The database by way of the proxy, with these options."""
        login = self._target.netloc.rpartition("@")[0]
        query = urlencode({name: str(value) for name, value in options.items()})
        return urlunsplit(self._target._replace(netloc=f"{login}@{host}:{self.port}", query=query))

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if await client.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
            return
        to_client.write(b"S")
        await to_client.start_tls(self._context)
        await join(client, to_client, self._target.hostname, self._target.port)
