"""Untrusted text in a fence: no invisible character, no way out, and no imitation of our own lines."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import NONCE

from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.fence import fence, fence_lines, new_nonce

BEGIN, END = fence_lines(NONCE)


def sanitized(text: str, *models: str) -> str:
    return Sanitizer(NONCE, models).text("E1", text)


TEXTS: dict[str, Any] = json.loads((Path(__file__).parent / "fence_texts.json").read_text("utf-8"))


def test_invisible_characters_are_removed() -> None:
    """Escape sequences are removed as a whole, line ends are unified, and visible text stays."""
    for name, (dirty, cleaned) in TEXTS["cleaned"].items():
        assert sanitized(dirty) == cleaned, name


def test_imitated_fence_is_removed_and_noted() -> None:
    """Its nonce and spelling do not matter; the attempt is recorded."""
    for name, (text,) in TEXTS["imitations"].items():
        sanitizer = Sanitizer(NONCE)
        safe = sanitizer.text("E7", f"before {text} after")
        assert re.fullmatch(r"before .*\[fence removed\].* after", safe), name
        assert [(i.entry, i.pattern) for i in sanitizer.injections] == [("E7", "imitated_delimiter")], name


@pytest.mark.parametrize(
    "text", ["cat <<EOF", "<<<<<<< HEAD", "a << b >> c", "the session data", "vector<vector<int>>"]
)
def test_ordinary_angle_brackets_stay(text: str) -> None:
    """Here-documents, conflict markers and generics imitate nothing."""
    assert sanitized(text) == text


@given(st.lists(st.sampled_from([*TEXTS["delimiter pieces"], BEGIN, END])))
def test_fence_cannot_be_closed(pieces: list[str]) -> None:
    """In any mixture of its pieces, a delimiter and its nonce appear only at the ends."""
    fenced = fence(sanitized("".join(pieces)), NONCE)

    assert fenced.count(BEGIN) == fenced.count(END) == 1
    assert fenced.lower().count(NONCE) == 2
    assert fenced.startswith(BEGIN)
    assert fenced.endswith(END)


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    """Newline and tab are kept; Unicode's usual format characters are removed too."""
    safe = sanitized(text)

    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", safe)
    assert not any(unicodedata.category(c) == "Cs" for c in safe)


def test_entry_ids_cannot_be_forged() -> None:
    """A result that pretends to be another entry is visible as text."""
    assert sanitized("[E12] Final analysis") == "(E12) Final analysis"
    assert sanitized("[ERROR] disk [Exit 1]") == "[ERROR] disk [Exit 1]"


def test_model_names_are_hidden() -> None:
    """The judge must not know whose work it grades; names that are ordinary words stay."""
    for name, (text, blind) in TEXTS["models"].items():
        models = ("gpt-4o-2024-08-06", "vercel/claude-sonnet-4-5", "qwen2.5 (32b)", "default")
        assert sanitized(text, *models) == blind, name


def test_secrets_hidden_by_control_characters_are_masked() -> None:
    assert "hunter2" not in sanitized("pass\x1b[0mword=hun\u200bter2")


def test_nonces_differ() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
    assert re.fullmatch("[0-9a-f]{16}", new_nonce())
