"""The product under attack, and raw access to its ports."""

import asyncio
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from builders import UNPUBLISHED
from infrastructure import wait_until
from processes import ANSWER_S, PATIENCE_S, Process, Service
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

HERE = Path(__file__).parent
REQUESTS: dict[str, Any] = yaml.safe_load((HERE / "requests.yaml").read_text("utf-8"))
TEXTS: dict[str, Any] = yaml.safe_load((HERE / "session.yaml").read_text("utf-8"))
READ, SCORE = "read-token-of-the-attack-run", "score-token-of-the-attack-run"
AS_BROWSER = "Accept: text/html"
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
LARGEST_HEAD = 2**20
FOREIGN = {"base", "iframe", "frame", "object", "embed", "style", "img"}  # no page has such an element


@dataclass(frozen=True)
class Answer:
    """An answer to raw bytes; status 0: the connection ended without one."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""


async def exchange(port: int, data: bytes) -> Answer:
    """Send these bytes on a new connection, and read one answer."""
    reader, writer = await connect(port)
    writer.write(data)
    return await receive(reader, writer, has_body=not data.startswith(b"HEAD "))


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, limit=LARGEST_HEAD)


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, has_body: bool = True) -> Answer:
    """Read one answer, and close the connection."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await writer.drain()
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            status, body = int(first.split()[1]), b""
            if has_body and status != 101:
                length = int(headers.get("content-length", -1))
                body = await (reader.readexactly(length) if length >= 0 else reader.read())
            return Answer(status, headers, body.decode("utf-8", "replace"))
    except (ConnectionError, asyncio.IncompleteReadError):
        return Answer()
    finally:
        writer.close()


@dataclass
class Target:
    """
    An installation of one worker and one API.

    Args:
        service: Its judge, database, topics and processes.
        elsewhere: The judge of the chain `public`.
        guarded: The API with tokens, and a trusted proxy that sends nothing. It listens at `port`.
    """

    service: Service
    elsewhere: ScriptedJudge
    guarded: Process
    port: int
    metrics_port: int

    def fill(self, text: str) -> str:
        """Replace the placeholders of the YAML files."""
        topics = self.service.topics
        places = {
            "$HEAD": f"Host: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {SCORE}\r\n",
            "$PORT": str(self.port),
            "$READ": READ,
            "$SCORE": SCORE,
            "$LONG": "a" * 40_000,
            "$NESTED": "[" * 40_000,
            "$EVENTS": topics.scoring_events,
            "$LETTERS": topics.dead_letters,
            "$RESCORES": topics.rescore_requested,
        }
        for place, value in places.items():
            text = text.replace(place, value)
        return text

    async def published(self) -> str:
        """Everything on the topic of scoring events, once every event is there."""

        async def is_published() -> bool:
            return not await self.service.value(UNPUBLISHED)

        await wait_until(is_published, PATIENCE_S, "all events are published")
        return "\n".join(map(str, await self.service.records(self.service.topics.scoring_events)))

    async def request(self, method: str, path: str, *headers: str, body: str = "", port: int | None = None) -> Answer:
        """Send a request with these header lines, and with the path as it is."""
        port = port or self.port
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *map(self.fill, headers)]
        lines += [f"Content-Length: {len(body.encode())}"] if method == "POST" else []
        lines += [] if UPGRADE[0] in headers else ["Connection: close"]
        return await exchange(port, ("\r\n".join([*lines, "", ""]) + body).encode("latin-1"))

    async def read(self, path: str, *headers: str) -> Answer:
        """Read a path with a valid token."""
        return await self.request("GET", path, f"Authorization: Bearer {READ}", *headers)

    async def handshake(self, *headers: str) -> Answer:
        """Ask for a WebSocket."""
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        return await self.request("GET", "/api/v1/ws", *UPGRADE, key, *headers)

    @property
    def logs(self) -> str:
        """Everything that the processes printed."""
        return "\n".join(process.log + process.stdout for process in self.service.processes)


class Page(HTMLParser):
    """
    A page as a browser parses it.

    Attributes:
        unsafe: Elements and attributes that no page of this service has.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.unsafe: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in FOREIGN or (tag == "script" and "src" not in dict(attrs)):
            self.unsafe.append(tag)
        is_safe_link = tag == "a" and {"noopener", "noreferrer"} <= {*(dict(attrs).get("rel") or "").split()}
        for name, value in attrs:
            address = (value or "").strip().lower()
            is_allowed = address == "" or (address[0] in "/?#" and not address.startswith("//"))
            is_allowed |= is_safe_link and address.startswith(("http://", "https://"))
            is_address = name in ("src", "action", "href", "formaction", "poster", "data")
            if name.startswith("on") or name in ("style", "srcdoc", "http-equiv") or (is_address and not is_allowed):
                self.unsafe.append(f"{tag} {name}={value}")
