"""Text of judges and agents on a page: it is readable, and harmless even if it is hostile."""

import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tables import table
from tarsy_scoring.web.pages import markdown
from tarsy_scoring.web.pages.legible import MAX_CHARACTERS, legible
from tarsy_scoring.web.pages.markdown import render

TIMELINE = "/sessions/a.b-1/timeline?score=0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10&"
HARMLESS = {"href", "rel", "start"}


class Elements(HTMLParser):
    """The tags of a piece of HTML with their attributes, as a browser reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def links(html: str) -> list[str | None]:
    return [attributes.get("href") for tag, attributes in Elements(html).found if tag == "a"]


HOSTILE: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def test_hostile_text_stays_text() -> None:
    """Only harmless tags and attributes come out; links lead to http and https or nowhere."""
    for text in HOSTILE.values():
        for tag, attributes in Elements(render(text)).found:
            assert tag not in {
                "script",
                "style",
                "iframe",
                "img",
                "svg",
                "form",
                "input",
                "div",
                "object",
                "meta",
                "base",
            }
            assert set(attributes) <= HARMLESS
        assert all(link is not None and link.startswith("https://a.example/") for link in links(render(text)))


def test_the_parser_alone_lets_nothing_through() -> None:
    """The first of two defences, tested without the second."""
    for text in HOSTILE.values():
        html = markdown.PARSER.render(text, {})
        assert {tag for tag, _ in Elements(html).found} <= markdown.TAGS
        assert all(str(link).startswith("https://a.example/") for link in links(html))


def test_the_cleaner_alone_lets_nothing_through() -> None:
    """The second defence, tested as if the parser had let raw HTML pass."""
    for text in HOSTILE.values():
        html = markdown.CLEANER.clean(f'{text}<a href="javascript:x" onclick="x" style="x">y</a><a href="/score">z</a>')
        found = Elements(html).found
        assert {tag for tag, _ in found} <= markdown.TAGS
        assert all(set(attributes) <= HARMLESS for _, attributes in found)
        assert set(links(html)) <= {None}  # a script that is never closed swallows them


def test_a_link_reveals_nothing_about_this_site() -> None:
    """It carries no opener, no referrer and no endorsement."""
    [(_, _), (tag, attributes)] = Elements(render("[x](https://a.example/b)")).found
    assert (tag, attributes["href"]) == ("a", "https://a.example/b")
    assert {"noopener", "nofollow", "noreferrer"} == set((attributes["rel"] or "").split())


def test_a_link_shows_where_it_leads() -> None:
    """In ASCII: letters of other alphabets may look like those of a known name. The style sheet prints the address."""
    html = render("<https://xn--80ak6aa92e.com/> [x](https://\u0430\u0440\u0440\u04cf\u0435.com/a)")
    assert html.isascii()
    assert links(html) == ["https://xn--80ak6aa92e.com/", "https://xn--80ak6aa92e.com/a"]
    styles = Path(markdown.__file__).parent / "static" / "pages.css"
    assert '.prose a[href^="http" i]::after { content: " (" attr(href) ")"' in styles.read_text()


@table
def test_citations_lead_to_their_entries(text: str, linked: list[str]) -> None:
    """Where the session can be shown; a link of the text stays as it is."""
    found = [str(link) for link in links(render(text, TIMELINE)) if str(link).startswith("/")]
    assert found == [f"{TIMELINE}at={entry}#timeline-{entry}" for entry in linked]
    assert links(render("E3")) == []


def test_headings_are_below_those_of_the_page() -> None:
    found = [tag for tag, _ in Elements(render("# x\n\n## x\n\n###### x")).found]
    assert found == ["h3", "h4", "h6"]


def test_invisible_characters_are_removed() -> None:
    """NUL, escape sequences and direction overrides are removed."""
    assert legible("a\0b\x1b[31m\u202ec\u2066\n\td\x85") == "ab[31mc\n\td"
    assert "\u202e" not in render("x \u202e y\0")


def test_lines_stay_lines_where_they_mean_something() -> None:
    """A judge states each part of the total on its own line; an agent may break lines at a width."""
    assert "<br" in render("Logical Flow: 18/25\nConsistency: 16/25")
    assert "<br" not in render("one sentence\nof an agent", keeps_lines=False)


def test_a_very_long_text_is_shown_without_parsing() -> None:
    """Parsing it would cost too much, and such a text was not written to be read."""
    html = render("<b>" + "# x\n" * MAX_CHARACTERS)
    assert html.startswith("<pre>&lt;b&gt;# x")


@pytest.mark.parametrize("piece", ["[", "![[", "*a ", "`", "_*", "|a", "> ", "- ", "<", "E1 ", "[a](<", "&#"])
def test_hostile_repetition_is_rendered_in_bounded_time(piece: str) -> None:
    """It takes at most a few times as long as ordinary text of the same length."""
    began = time.thread_time()
    render((piece * MAX_CHARACTERS)[:MAX_CHARACTERS], TIMELINE)
    assert time.thread_time() - began < 5
