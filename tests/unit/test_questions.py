"""The pages that answer questions are found, and lead on."""

import re
from pathlib import Path

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


def test_links_lead_somewhere() -> None:
    """To a file that exists, and to a heading in it."""
    for page in [*PAGES, ROOT / "docs/comparing.md"]:
        links = LINKS.findall(page.read_text("utf-8"))
        assert links, page
        assert [link for link in links if not leads_somewhere(page, link)] == [], page


def test_every_question_is_found_from_the_front_page() -> None:
    """The README and the list of questions have each page of the folder, which leads to its reference."""
    readme, listed = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/questions/README.md"))
    for question, reference in REFERENCES.items():
        assert f"](docs/questions/{question})" in readme
        assert f"]({question})" in listed
        assert f"](../{reference})" in (ROOT / "docs/questions" / question).read_text("utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(REFERENCES)
