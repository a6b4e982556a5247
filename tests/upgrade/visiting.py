"""Visits every page of an API process, and reads every resource of its HTTP API."""

import html
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import aiohttp

from processes import PATIENCE_S

LINK = re.compile(r'\b(?:href|src)="(/[^"#]*)')
# The export of all scores would take minutes.
NARROWED = {"/api/v1/scoring/export": "?chain=chain-1"}
PAGES_OF_ONE = ("/sessions/{session_id}", "/scores/{score_id}")
PAGES = {"/trends", "/distribution", "/missing-tools", "/failure-tags", "/drift", "/review"}


async def visit_everything(address: str, known: Mapping[str, str]) -> None:
    """
    GET each operation of the OpenAPI document, and the pages and files that links reach, one of each shape.

    Args:
        known: Values of path parameters.

    Raises:
        AssertionError: An answer is not 200, or no link leads to one of `PAGES`.
    """
    visited: set[str] = set()
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(address, timeout=timeout, headers={"Accept": "text/html, */*"}) as client:

        async def get(path: str) -> str:
            async with client.get(path, allow_redirects=False) as answer:
                body = await answer.text(errors="replace")
                assert answer.status == 200, f"GET {path} was answered with {answer.status}: {body[:500]}"
                return body if answer.content_type == "text/html" else ""

        async with client.get("/openapi.json") as document:
            paths = (await document.json())["paths"]
        for path, operations in paths.items():
            if "get" in operations:
                visited.add(path)
                given = {name: quote(value, safe="") for name, value in known.items()}
                await get(path.format_map(given) + NARROWED.get(path, ""))
        open_ = ["/", *(page.format_map(known) for page in PAGES_OF_ONE)]
        while open_:
            link = open_.pop()
            shape = re.sub(r"(?<=/)[^/]*\d[^/]*", "*", urlsplit(link).path)
            if shape in visited or shape.startswith("/api/"):
                continue
            visited.add(shape)
            open_ += map(html.unescape, LINK.findall(await get(link)))
    assert visited >= PAGES
