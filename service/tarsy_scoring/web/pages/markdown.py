"""
Markdown from judges and agents as safe HTML.

The text may be hostile, so two independent libraries check it. The Markdown parser passes no HTML and only
http and https links. A sanitizer then removes every tag and attribute outside a short list.
"""

import re
from collections.abc import Iterator
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup, escape

from tarsy_scoring.web.pages.legible import CITATION, MAX_CHARACTERS, legible

_HTTP = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
_TIMELINE = re.compile(r"/sessions/[^/?#]+/timeline\?[\w=&-]*#timeline-E[1-9][0-9]{0,5}")
TAGS = {
    *("h3", "h4", "h5", "h6", "p", "br", "hr", "blockquote", "pre", "code", "em", "strong", "s", "a"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
}


def render(text: str, timeline: str = "", *, keeps_lines: bool = True) -> Markup:
    """
    Markdown as HTML that is safe to show.

    Raw HTML and images stay text. Links are http or https, without referrer and opener; the style sheet prints their address.
    A text longer than `MAX_CHARACTERS` is shown unformatted.

    Args:
        timeline: Start of the timeline address to which citations link; empty: they stay text.
        keeps_lines: Whether a line break is kept. Judges write one category per line, while
            agents may wrap lines at a width.
    """
    text = legible(text)
    if len(text) > MAX_CHARACTERS:
        return Markup("<pre>") + escape(text) + Markup("</pre>")
    html = (PARSER if keeps_lines else _FLOWING).render(text, {"timeline": timeline})
    # The only text from outside that becomes markup without escaping.
    return Markup(CLEANER.clean(html))  # noqa: S704


def _is_address(url: str) -> bool:
    return _HTTP.match(url) is not None


def _keep_attribute(_tag: str, name: str, value: str) -> str | None:
    return value if name != "href" or _is_address(value) or _TIMELINE.fullmatch(value) else None


def _lower_headings(state: StateCore) -> None:
    """Begin the outline below the headings of the page."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"


def _link_citations(state: StateCore) -> None:
    timeline: str = state.env.get("timeline", "")
    for token in state.tokens if timeline else ():
        linked: list[Token] = []
        depth = 0
        for child in token.children or ():
            depth += (child.type == "link_open") - (child.type == "link_close")
            linked += _split(child.content, timeline) if child.type == "text" and not depth else [child]
        token.children = linked


def _split(text: str, timeline: str) -> Iterator[Token]:
    position = 0
    for found in CITATION.finditer(text):
        yield _text(text[position : found.start()])
        yield Token("link_open", "a", 1, attrs={"href": f"{timeline}at={found[0]}#timeline-{found[0]}"})
        yield _text(found[0])
        yield Token("link_close", "a", -1)
        position = found.end()
    yield _text(text[position:])


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _parser(*, breaks: bool) -> MarkdownIt:
    options: dict[str, Any] = {"html": False, "breaks": breaks, "linkify": False, "maxNesting": 20}
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    parser.disable("image")
    parser.validateLink = _is_address  # type: ignore[method-assign]
    parser.normalizeLinkText = str  # type: ignore[assignment]  # in ASCII, as the link itself
    parser.core.ruler.push("headings", _lower_headings)
    parser.core.ruler.push("citations", _link_citations)
    return parser


PARSER, _FLOWING = _parser(breaks=True), _parser(breaks=False)
CLEANER = nh3.Cleaner(
    tags=TAGS,
    attributes={"*": set(), "a": {"href"}, "ol": {"start"}},
    attribute_filter=_keep_attribute,
    link_rel="noopener nofollow noreferrer",
    clean_content_tags=set(),
)
