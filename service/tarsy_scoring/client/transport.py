"""What both clients ask of httpx2, and how they read its answers."""

from typing import Any

import httpx2

from tarsy_scoring import __version__
from tarsy_scoring.client.errors import Unavailable
from tarsy_scoring.client.exchange import Reply


def options(base_url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """Options of the HTTP client. Raises: ValueError: `base_url` is no HTTP address."""
    url = httpx2.URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url {base_url!r} is no HTTP address: write it as https://scoring.example")
    headers = {"User-Agent": f"tarsy-scoring-client/{__version__}", "Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {"base_url": url, "headers": headers, "timeout": timeout_s}


def reply_of(response: httpx2.Response) -> Reply:
    """The answer, read to its end before."""
    return Reply(
        response.status_code,
        {name.lower(): text for name, text in response.headers.items()},
        response.content,
    )


def unreachable(error: httpx2.TransportError, base_url: httpx2.URL) -> Unavailable:
    """The error where no whole answer arrived."""
    reason = str(error) or type(error).__name__
    return Unavailable(f"the API at {base_url} cannot be reached or broke off: {reason}")
