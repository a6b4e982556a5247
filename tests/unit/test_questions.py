"""The pages that answer questions are found, and lead on."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/questions").glob("*.md"))
LINKS = re.compile(r"\]\(([^)\s:]+)\)")
REFERENCES = {
    "did-my-prompt-change-help.md": "comparing.md",
    "did-the-judge-change.md": "anchors.md",
    "which-tool-should-we-build.md": "missing-tools.md",
    "can-i-trust-this-number.md": "trust.md",
}


def anchor_of(heading: str) -> str:
    """As a reader of Markdown makes them out of headings."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
    return not anchor or anchor in map(anchor_of, headings)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/comparing.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading in it."""
    links = LINKS.findall(page.read_text("utf-8"))

    assert links
    assert [link for link in links if not leads_somewhere(page, link)] == []


@pytest.mark.parametrize(("question", "reference"), REFERENCES.items(), ids=list(REFERENCES))
def test_every_question_is_found_from_the_front_page(question: str, reference: str) -> None:
    """It stands in the README and in the list of questions, and leads to the page with everything about it."""
    readme, listed = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/questions/README.md"))

    assert f"](docs/questions/{question})" in readme
    assert f"]({question})" in listed
    assert f"](../{reference})" in (ROOT / "docs/questions" / question).read_text("utf-8")


def test_no_page_is_left_out() -> None:
    """Every page of the folder is a question that is listed."""
    assert {page.name for page in PAGES} - {"README.md"} == set(REFERENCES)
