"""Style sheets, scripts and the icon, and the route that serves them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePath

from fastapi import APIRouter
from starlette.responses import Response

from tarsy_scoring.web.edge.problems import Problem

router = APIRouter(include_in_schema=False)

YEAR_S = 31_536_000
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A served file. The address contains a digest, so browsers may keep the file."""

    content: bytes
    media_type: str
    digest: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """The files, by name."""
    files = {}
    for file in resources.files("tarsy_scoring.web.pages").joinpath("static").iterdir():
        if (media_type := STATIC_TYPES.get(PurePath(file.name).suffix)) is not None:
            content = file.read_bytes()
            files[file.name] = StaticFile(content, media_type, hashlib.sha256(content).hexdigest()[:16])
    return files


def address_of(name: str) -> str:
    """Where browsers get a file."""
    return f"/static/{static_files()[name].digest}/{name}"


@router.get("/static/{digest}/{name}")
async def static_file(digest: str, name: str) -> Response:
    """A style sheet, script or icon."""
    file = static_files().get(name)
    if file is None or file.digest != digest:
        raise Problem(404, "Not found", "this version has no such file: reload the page that links to it")
    headers = {"Cache-Control": f"private, max-age={YEAR_S}, immutable"}
    return Response(file.content, 200, headers, media_type=file.media_type)
