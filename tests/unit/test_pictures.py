"""The pictures of the documentation: listed, small, and shown with a text for those who do not see them."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
LISTED = sorted(yaml.safe_load((FOLDER / "pictures.yaml").read_text("utf-8")))
MOST_BYTES = 150_000
SHOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]*images/([a-z-]+)\.png)\)")


def shown() -> list[tuple[Path, str, str, str]]:
    """Page, text, address and name of each picture that the README and the documentation show."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [(page, *found) for page in pages for found in SHOWN.findall(page.read_text("utf-8"))]


def test_every_listed_picture_exists_and_is_shown() -> None:
    """`make screenshots` takes the listed ones; a picture that no list has would never be taken again."""
    assert sorted(file.stem for file in FOLDER.glob("*.png")) == LISTED
    assert sorted({name for *_, name in shown()}) == LISTED


@pytest.mark.parametrize("name", LISTED)
def test_a_picture_is_small(name: str) -> None:
    assert (FOLDER / f"{name}.png").stat().st_size <= MOST_BYTES


def test_a_picture_has_a_text_and_the_right_address() -> None:
    """The text says what the picture shows."""
    for page, text, address, _ in shown():
        assert len(text.split()) >= 6, f"{page}: {text}"
        assert (page.parent / address).is_file(), f"{page}: {address}"
