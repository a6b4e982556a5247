"""The pages that answer questions can be found and have working links."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/questions").glob("*.md"))
LINKS = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s:]+)\)")  # without pictures: test_pictures.py
REFERENCES = {
    "did-a-chain-get-worse.md": "anchors.md",
    "did-my-prompt-change-help.md": "comparing.md",
    "did-the-judge-change.md": "anchors.md",
    "which-tool-should-we-build.md": "missing-tools.md",
    "can-i-trust-this-number.md": "trust.md",
}


def anchor_of(heading: str) -> str:
    """The anchor that a Markdown renderer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def is_valid_link(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
    return not anchor or anchor in map(anchor_of, headings)


def test_links_lead_to_existing_pages_and_headings() -> None:
    for page in [*PAGES, ROOT / "docs/comparing.md"]:
        links = LINKS.findall(page.read_text("utf-8"))
        assert links, page
        assert [link for link in links if not is_valid_link(page, link)] == [], page


def test_every_question_is_found_from_the_front_page() -> None:
    """README and list of questions link each page of the folder, which links its reference."""
    readme, listed = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/questions/README.md"))
    for question, reference in REFERENCES.items():
        assert f"](docs/questions/{question})" in readme
        assert f"]({question})" in listed
        assert f"](../{reference})" in (ROOT / "docs/questions" / question).read_text("utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(REFERENCES)
