"""
Templates and the values they are given: a page is made here, with the headers that keep it harmless.

Every value is text: it is escaped, and characters that nobody sees are taken out. Only `markdown.render` and the
pictures make HTML.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from tarsy_scoring.web.pages import markdown, words

SECTIONS = (
    ("/", "Sessions"),
    ("/trends", "Trends"),
    ("/drift", "Drift"),
    ("/distribution", "Distribution"),
    ("/missing-tools", "Missing tools"),
    ("/failure-tags", "Failure tags"),
    ("/review", "Review"),
)
# Nothing from elsewhere, nothing inline: what hostile text may ever get past the escaping does not run.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Live:
    """
    What a page follows while it is open.

    Args:
        channel: As the gateway names it.
        position: Of the last event before the page was read: whatever comes behind it may be news to the page.
    """

    channel: str
    position: int


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is served; its address changes with its content."""

    content: bytes
    media_type: str
    digest: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Style sheets, scripts and the icon, by name."""
    files = {}
    for file in resources.files("tarsy_scoring.web.pages").joinpath("static").iterdir():
        if (media_type := STATIC_TYPES.get(PurePath(file.name).suffix)) is not None:
            content = file.read_bytes()
            files[file.name] = StaticFile(content, media_type, hashlib.sha256(content).hexdigest()[:16])
    return files


def page(template: str, status: int = 200, *, headers: Mapping[str, str] | None = None, **values: Any) -> HTMLResponse:
    """
    A page as an answer.

    Args:
        template: Name of a file in `templates`, which extends `frame.html`.
        values: For the template; `here` (path of the section) and `live` are the frame's.
    """
    html = _templates().get_template(template).render({"here": "", "live": None} | values)
    return HTMLResponse(html, status, {"Content-Security-Policy": CONTENT_SECURITY_POLICY} | dict(headers or {}))


def read_templates() -> None:
    """Every template made ready, so that nobody waits for it at the first page."""
    for name in _templates().list_templates(extensions=["html"]):
        _templates().get_template(name)


# --- values as text ------------------------------------------------------------------------------------


def when(at: datetime) -> str:
    """A moment to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def points(number: float | None) -> str:
    """Two decimals at most, and none where it is whole."""
    return "–" if number is None else exactly(round(number, 2))


def exactly(number: float) -> str:
    """All decimals that somebody gave, none where it is whole; without exponent, and nothing has no sign."""
    return f"{Decimal(repr(number + 0.0)).normalize():f}"


def usd(amount: float | None) -> str:
    """Dollars, from ten cents on to the cent; small amounts are not rounded away, and unknown is not nothing."""
    if amount is None:
        return "unknown"
    if 0 < amount < 0.0001:
        return "less than $0.0001"
    return f"${amount:.4f}" if 0 < amount < 0.1 else f"${amount:,.2f}"


def seconds(amount: float | None) -> str:
    """A duration in the unit that suits it."""
    if amount is None:
        return "–"
    if amount < 90:
        return f"{amount:.1f} s"
    minutes, rest = divmod(round(amount), 60)
    return f"{minutes} min {rest} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def spelt(identifier: str) -> str:
    """An identifier as words."""
    return identifier.replace("_", " ").strip()


def capitalize_first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _shown(value: Any) -> Any:
    """What every value that a template prints passes through."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else markdown.legible(value)


def _static(name: str) -> str:
    return f"/static/{static_files()[name].digest}/{name}"


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("tarsy_scoring.web.pages"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "when": when,
        "percent": percent,
        "count": count,
        "points": points,
        "exactly": exactly,
        "usd": usd,
        "seconds": seconds,
        "capitalize_first": capitalize_first,
        "spelt": spelt,
        "markdown": markdown.render,
    }
    environment.globals |= {
        "sections": SECTIONS,
        "static": _static,
        "badge_of": words.badge_of,
        "badge_for": words.badge,
        "band_of": words.band_of,
        "every_badge": words.every_badge,
        "in_words": words.in_words,
        "words": words,
    }
    return environment
