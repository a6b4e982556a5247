"""Disguised text is found where it stands: folded offsets lead back to the text."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_scoring.timeline.clean.folding import fold
from tarsy_scoring.timeline.clean.injection import find_injections

DISGUISED = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


@pytest.mark.parametrize("disguised", DISGUISED.values(), ids=DISGUISED.keys())
@pytest.mark.parametrize(
    "before", ["", "A fact of 10:02. ", "Größe: 3 → ok; "], ids=["nothing", "words", "other letters"]
)
def test_disguised_order_is_found_where_it_stands(disguised: str, before: str) -> None:
    text = f"{before}{disguised}. The pods are ready.".encode()

    [span] = find_injections(text)

    assert span.kind == "ignore_instructions"
    place = text[span.start : span.end].decode()
    assert text[: span.start].decode().strip() == before.strip()
    assert disguised.startswith(place)
    assert len(place) > len(disguised) // 2


PARTS = ["a", " ", "é", "e\u0301", "і", "&#105;", r"\u0069", "%41%42", "漢", "한", "ß", "x<b>y", "1"]
TEXTS = st.lists(st.sampled_from(PARTS))


@given(TEXTS, TEXTS, TEXTS)
def test_offsets_lead_back(before: list[str], middle: list[str], after: list[str]) -> None:
    """What folds apart from its surroundings is found again."""
    parts = ["".join(part).encode() for part in (before, [*middle, "x"], after)]
    folded = [fold(part).text for part in parts]
    data = b"|".join(parts)
    whole = fold(data)
    start = len(folded[0]) + 1

    assert whole.text == b"|".join(folded)
    begin, end = whole.source(start, start + len(folded[1]))
    assert fold(data[begin:end]).text == folded[1]
    assert data[begin - 1 : begin] == b"|"
