"""
The pictures of the documentation: which there are, and the structure of the page that each shows.

The bytes of a picture change with fonts and dates. The structure of its page does not, so that a picture whose
page has another structure is out of date.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from playwright.async_api import Page

FOLDER = Path(__file__).parents[2] / "docs" / "images"
CONTENTS = FOLDER / "pictures.yaml"
VIEWPORT = {"width": 1000, "height": 600}
ARE_WRITTEN = bool(os.environ.get("WRITE_PICTURES"))

# Headings, heads of tables, and names of fields, in the order of the page. Quoted text (`.prose`), figures (`.quiet`),
# conclusions and everything that is not shown are left out.
_READ = """() => {
  const words = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll(".quiet, .chip, .badge, code, time, svg, select, input").forEach((part) => part.remove());
    return copy.textContent.replace(/\\s+/g, " ").trim();
  };
  return [...document.querySelectorAll("main :is(h1, h2, h3, thead th, label, summary)")]
    .filter((one) => one.checkVisibility() && !one.closest(".prose, .entry, [aria-label=Conclusion], tbody"))
    .map((one) => [one.localName, words(one)])
    .filter(([, text]) => text && !/\\d/.test(text))
    .map((line) => line.join(": "));
}"""


@dataclass(frozen=True)
class Picture:
    """
    A picture of a page; its structure as of the last `make screenshots`.

    Args:
        part: CSS selector of the part that the picture shows; None: what a visitor sees first.
    """

    name: str
    address: str
    structure: list[str]
    part: str | None = None

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.png"


def all_pictures() -> list[Picture]:
    """The pictures that `pictures.yaml` lists."""
    return [Picture(name, **known) for name, known in _contents().items()]


def stored(name: str) -> Picture:
    """The picture as it is listed now."""
    return next(picture for picture in all_pictures() if picture.name == name)


async def read_structure(page: Page) -> list[str]:
    """A line per part, each once, in the order of the page. A text with digits is data and left out."""
    found: Any = await page.evaluate(_READ)
    return list(dict.fromkeys(found))


async def write(picture: Picture, page: Page, structure: list[str]) -> None:
    """Take the picture, and store the structure of its page."""
    shown = page if picture.part is None else page.locator(picture.part)
    await shown.screenshot(path=picture.file)
    head = "".join(line for line in CONTENTS.read_text("utf-8").splitlines(keepends=True) if line.startswith("#"))
    contents = _contents()
    contents[picture.name]["structure"] = structure
    CONTENTS.write_text(head + yaml.safe_dump(contents, sort_keys=False, allow_unicode=True, width=120), "utf-8")


def _contents() -> dict[str, Any]:
    contents: dict[str, Any] = yaml.safe_load(CONTENTS.read_text("utf-8"))
    return contents
