"""Contrast of colours in light and dark, from the style sheets."""

import re

import pytest

from tarsy_scoring.web.pages.rendering import static_files

SHEETS = [static_files()[name].content.decode() for name in ("pages.css", "charts.css")]
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)

GROUNDS = ("paper", "sheet", "sunk")
TINTED = ("good", "fair", "weak", "busy", "plain")
SERIES = tuple(f"series-{n}" for n in range(1, 7))

# Text with its background: pages, sheets and chips; badges and notes; the accent's button.
WORDS = [
    *((ink, ground) for ink in ("ink", "quiet") for ground in GROUNDS),
    *(("accent", ground) for ground in ("paper", "sheet", "sunk")),
    *((tint, f"{tint}-wash") for tint in TINTED),
    *((tint, ground) for tint in TINTED for ground in ("paper", "sheet")),
    *((ink, f"{tint}-wash") for ink in ("ink", "quiet", "accent") for tint in TINTED),
    ("sheet", "accent"),
]
# Lines, marks and bars that mean something, the edge of a field, and the ring around what has the focus.
SHAPES = [
    *((series, "sheet") for series in SERIES),
    *((tint, ground) for tint in ("good", "fair", "weak", "accent") for ground in ("sheet", "sunk")),
    *((line, ground) for line in ("focus", "edge") for ground in ("paper", "sheet")),
]


def colours(scheme: str) -> dict[str, str]:
    """The variables of the sheets by name, those of the dark block on top for `dark`."""
    found: dict[str, str] = {}
    for sheet in SHEETS:
        found |= _variables("".join(re.findall(r":root \{(.*?)\}", DARK.sub("", sheet), re.DOTALL)))
    for sheet in SHEETS if scheme == "dark" else []:
        [block] = DARK.findall(sheet)
        found |= _variables(block)
    return found


def _variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{3,6})\b", block))


def contrast(one: str, other: str) -> float:
    """
    Between two colours, 1 to 21.

    Source: WCAG 2.2, contrast ratio and relative luminance.
    """
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    """Text has a contrast of at least 4.5 to its background."""
    known = colours(scheme)
    weak = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in WORDS}
    assert not {pair: ratio for pair, ratio in weak.items() if ratio < 4.5}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_meaningful_shapes_have_enough_contrast(scheme: str) -> None:
    """Lines, marks and bars with a meaning have a contrast of at least 3."""
    known = colours(scheme)
    weak = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in SHAPES}
    assert not {pair: ratio for pair, ratio in weak.items() if ratio < 3}


def test_dark_scheme_replaces_every_colour() -> None:
    """A variable that only one block sets would keep a colour of the wrong scheme."""
    light, dark = colours("light"), colours("dark")
    assert light.keys() == dark.keys()
    assert [name for name in light if light[name] == dark[name]] == []


def test_nothing_moves_if_reduced_motion_is_preferred() -> None:
    [rules] = re.findall(r"@media \(prefers-reduced-motion: reduce\) \{(.*?\})\s*\}", SHEETS[0], re.DOTALL)
    moving = set(re.findall(r"(\.[\w-]+) \{[^}]*(?:animation|transition):", SHEETS[0].replace(rules, "")))
    assert moving == {".spinner"}
    assert ".spinner { animation: none; }" in rules
