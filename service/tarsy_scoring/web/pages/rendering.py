"""
Templates and filters, and the response with security headers.

Every printed value is escaped, and loses invisible characters. Only `markdown.render` produces
HTML.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.live.stored import END
from tarsy_scoring.scores.why_no_score import in_words
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages import assets, registry, words
from tarsy_scoring.web.pages.legible import legible
from tarsy_scoring.web.pages.markdown import render

# No other origin and nothing inline, so hostile text that passed the escaping by a defect would still not
# run.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

NO_CRITERIA = CriteriaRegistry(())


@dataclass(frozen=True, slots=True)
class Live:
    """
    The events that an open page follows.

    Args:
        channel: A gateway channel.
        position: Newest event when the page was read. Later events may be news to the page.
    """

    channel: str
    position: int


async def position_of(context: AppContext) -> int:
    """
    Position that the newest published event has.

    Read it before the page: an event in between is then delivered twice and never missed.
    """
    database = context.reader.database
    return await database.once(lambda c: c.fetchval(database.sql(END))) or 0


def page(
    template: str,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    criteria: CriteriaRegistry = NO_CRITERIA,
    **values: Any,
) -> HTMLResponse:
    """
    Render a page.

    Args:
        template: Extends `frame.html`.
        criteria: Their bands give totals words and colours.
        values: For the template. `here` (the path in the navigation) and `live` are for the frame;
            `tarsy_url` is the address of TARSy's dashboard where pages link to it.
    """
    frame: dict[str, Any] = {"here": "", "live": None, "tarsy_url": None, "pages": registry.PAGES}
    frame |= {"bands": criteria.bands, "badge_of": partial(words.badge_of, criteria.bands)}
    html = templates().get_template(template).render(frame | values)
    return HTMLResponse(
        html, status, {"Content-Security-Policy": CONTENT_SECURITY_POLICY} | dict(headers or {})
    )


def problem_page(connection: HTTPConnection, problem: Problem, request_id: str) -> HTMLResponse:
    """An error as a page, with the same words as the problem document."""
    parts = connection.scope["path"].split("/")
    is_of_session = parts[1:2] == ["sessions"] and len(parts) == 4 and SESSION_ID_PATTERN.fullmatch(parts[2])
    return page(
        "problem.html",
        problem.status,
        headers=problem.headers,
        problem=problem,
        request_id=request_id,
        back=f"/sessions/{parts[2]}" if is_of_session else "/",
    )


# --- values as text ------------------------------------------------------------------------------------


def when(at: datetime) -> str:
    """A moment to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def points(number: float | None) -> str:
    """At most two decimals, and none for a whole number."""
    return "–" if number is None else f"{round(number, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def usd(amount: float | None) -> str:
    """Dollars: from ten cents on rounded to cents; None is "unknown" and not zero."""
    if amount is None:
        return "unknown"
    if 0 < amount < 0.0001:
        return "less than $0.0001"
    return f"${amount:.4f}" if 0 < amount < 0.1 else f"${amount:,.2f}"


def seconds(amount: float | None) -> str:
    """A duration in seconds, minutes or hours."""
    if amount is None:
        return "–"
    if amount < 90:
        return f"{amount:.1f} s"
    minutes, rest = divmod(round(amount), 60)
    return f"{minutes} min {rest} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def coordinate(value: float) -> str:
    """A position in a picture with one decimal: smaller differences are not visible."""
    return f"{value:.1f}".removesuffix(".0")


def spelt(identifier: str) -> str:
    """An identifier as words."""
    return identifier.replace("_", " ").strip()


def capitalize_first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _shown(value: Any) -> Any:
    """A value without invisible characters; Jinja applies this to every value that a template prints."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else legible(value)


@cache
def templates() -> Environment:
    """The template environment that all pages share."""
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("tarsy_scoring.web.pages"), PackageLoader("tarsy_scoring.studies")]
        ),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (when, percent, count, points, usd, seconds, coordinate, capitalize_first, spelt)
    environment.filters |= {filter_.__name__: filter_ for filter_ in filters} | {"markdown": render}
    environment.globals |= {"static": assets.address_of, "in_words": in_words, "words": words}
    return environment
