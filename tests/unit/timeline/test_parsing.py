"""Loosely typed JSON becomes records whose names and texts can be stored and shown."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import to_json

from tarsy_scoring.errors import SessionNotTerminal
from tarsy_scoring.evaluation.diagnosis import diagnose
from tarsy_scoring.evaluation.interaction import CommandRules, measure_interaction
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.files import NotASessionFile, parse_session
from tarsy_scoring.timeline.model import ToolCall
from tarsy_scoring.timeline.parsing import label_map, model_names, text_or_none, tool_call
from tarsy_scoring.timeline.text import storable
from unit.timeline.poisoned import POISON, SURVIVES, poisoned, texts_of


def test_unstorable_characters_are_removed_or_replaced() -> None:
    """NUL is removed, a lone surrogate becomes U+FFFD, and all else stays."""
    for text, kept in (
        ("Zürich 東京 😀", "Zürich 東京 😀"),
        ("a\0b", "ab"),
        ("ä\0b", "äb"),
        ("a\ud800b", "a\ufffdb"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\0\ude00", "\ufffd\ufffd"),
        ("a\tb\nc\x07", "a\tb\nc\x07"),
    ):
        assert storable(text) == kept


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from("\0\ud83d\ude00")))
def test_storable_text_is_valid_and_stable(text: str) -> None:
    """It is valid UTF-8 without NUL, and `storable` does not change it again."""
    kept = storable(text)

    assert b"\0" not in kept.encode()
    assert storable(kept) == kept


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from("\0\ud83d\ude00")))
@example("\x9b\0@")
def test_removing_characters_does_not_change_what_the_judge_sees(text: str) -> None:
    """The sanitizer gives the same with and without `storable`, so it does not hide an attack."""

    def shown(said: str) -> str:
        return Sanitizer("0123456789abcdef").text("E1", said)

    assert shown(storable(text)) == shown(text)


def test_empty_or_other_values_are_no_text() -> None:
    assert [text_or_none(value) for value in (None, 1, True, "", "\0", ["text"])] == [None] * 6


def test_labels_models_and_tools_are_storable() -> None:
    assert label_map({f"gui{POISON}dance": f"v{POISON}2", "nested": [POISON]}) == {
        f"gui{SURVIVES}dance": f"v{SURVIVES}2",
        "nested": '["\\u0000\\ud800"]',  # JSON in ASCII: the characters are spelled out
    }
    assert len(label_map([str(n) for n in range(60)])) == 50
    assert label_map({"long": ["v" * 1000], "short": "v"}) == {"short": "v"}
    assert label_map([f"a{POISON}"]) == {f"a{SURVIVES}": "true"}
    assert model_names({"model_name": f"gpt{POISON}", "llm_provider": "\0"}) == (f"gpt{SURVIVES}",)
    assert tool_call({"server_name": POISON, "tool_name": "\0", "arguments": "{}"}) == ToolCall(
        SURVIVES, "(unnamed tool)", "{}"
    )


# --- a whole session ---------------------------------------------------------------------------------


def test_no_text_of_a_session_is_left_unstorable() -> None:
    found = list(texts_of(parse_session(poisoned())))

    assert [text for text in found if text != storable(text)] == []
    assert sum(SURVIVES in text for text in found) > 60, "the poison was in nearly all of them"


def test_interaction_metrics_can_be_stored() -> None:
    """Names of tools and subcommands are keys of the metrics; the arguments stay unchanged."""
    for rules in (CommandRules(), CommandRules(r"kubectl (\S+)"), CommandRules(r"(?s)kubectl (.*)", ("bash*",))):
        measured = measure_interaction(parse_session(poisoned()), rules)

        found = [measured.document(), [finding.evidence for finding in diagnose(measured)]]
        assert [text for text in texts_of(found) if text != storable(text)] == []
        assert to_json(found)
        assert measured.total_commands >= 9
        assert any(SURVIVES in name for name in (measured.by_subcommand if rules.pattern else measured.by_tool))


def test_an_unknown_status_is_named_in_storable_words() -> None:
    with pytest.raises(SessionNotTerminal) as refused:
        parse_session(poisoned(status=f"half{POISON}done"))

    assert str(refused.value) == storable(str(refused.value))


def test_a_session_id_is_never_cleaned_into_another() -> None:
    with pytest.raises(NotASessionFile):
        parse_session(poisoned(session_id="one\0"))
