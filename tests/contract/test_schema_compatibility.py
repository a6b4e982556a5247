"""
Version 1 stays version 1: who knows its schemas as they were first published can go on.

`frozen/` holds them. A field that was added since is protected once its schema is copied there anew;
what these tests refuse needs a version 2 beside version 1.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from compatibility import Direction, breaches
from contracts import ALL, EXAMPLES, FROZEN, INCOMING, load_schema, schema_of_example, validator

Schema = dict[str, Any]


def direction_of(name: str) -> Direction:
    return "in" if name in INCOMING else "out"


@pytest.mark.parametrize("name", ALL)
def test_schema_keeps_what_version_1_promised(name: str) -> None:
    """Old producers are still understood, old consumers still understand."""
    assert breaches(load_schema(name, FROZEN), load_schema(name), direction_of(name)) == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_valid_under_the_frozen_schema(example: str) -> None:
    """What is shown as an example today is readable for who validates with the first schema."""
    validator(schema_of_example(example), FROZEN).validate(EXAMPLES[example])


def test_every_schema_is_frozen() -> None:
    """No published schema escapes the comparison."""
    assert {f"{n}.v1.json" for n in ALL} == {p.name for p in FROZEN.iterdir()}


# --- the comparison itself -----------------------------------------------------------------------------


def edit(path: str, value: Any) -> Callable[[Schema], None]:
    """Set what is at a path; `...` removes it."""

    def apply(schema: Schema) -> None:
        *way, last = path.split("/")
        place: Any = schema
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return apply


BREACHES_IN = {
    "field-removed": edit("properties/labels", ...),
    "field-required": edit("required", ["session_id", "event_id"]),
    "required-field-added": lambda s: (
        edit("properties/tenant", {"type": "string"})(s),
        edit("required", ["session_id", "tenant"])(s),
    ),
    "null-refused": edit("properties/chain_id", {"type": "string", "maxLength": 255}),
    "type-changed": edit("properties/session_id/type", "integer"),
    "shorter": edit("properties/event_id/anyOf/0/maxLength", 36),
    "longer-at-least": edit("properties/event_id/anyOf/0/minLength", 2),
    "bound-added": edit("properties/labels/anyOf/0/maxProperties", 5),
    "words-added-where-any-was-good": edit("properties/status/anyOf/0/enum", ["completed"]),
    "word-changed": edit("properties/type/anyOf/0/const", "session.done"),
    "pattern-changed": edit("properties/session_id/pattern", "^[a-z]+$"),
    "label-values-narrowed": edit("properties/labels/anyOf/0/additionalProperties/maxLength", 10),
    "unknown-fields-refused": edit("additionalProperties", False),
}
BREACHES_OUT = {
    "field-removed": edit("properties/flags", ...),
    "nested-field-removed": edit("$defs/Usage/properties/cost_usd", ...),
    "field-optional": lambda s: s["required"].remove("total_score"),
    "null-added": edit("properties/criteria", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "type-widened": edit("properties/total_score/anyOf/0/type", "number"),
    "item-type-changed": edit("properties/flags/items/type", "object"),
    "bound-raised": edit("properties/total_score/anyOf/0/maximum", 1000),
    "bound-dropped": edit("properties/total_score/anyOf/0/maximum", ...),
    "word-added": edit("properties/purpose/enum", ["production", "consistency", "anchor", "shadow", "other"]),
    "word-removed": edit("properties/purpose/enum", ["production"]),
    "list-opened": edit("properties/purpose/enum", ...),
}
ALLOWED_IN = {
    "optional-field-added": edit("properties/tenant", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "longer": edit("properties/event_id/anyOf/0/maxLength", 1000),
    "words-about-it": edit("description", "other words"),
    "default-stated": edit("properties/labels/default", {}),
}
ALLOWED_OUT = {
    "field-added": lambda s: (edit("properties/tenant", {"type": "string"})(s), s["required"].append("tenant")),
    "null-no-more": edit("properties/chain_id", {"type": "string"}),
    "bound-added": edit("properties/criteria_hash/maxLength", 64),
    "words-about-it": edit("properties/event_id/description", "other words"),
}


@pytest.mark.parametrize("change", BREACHES_IN.values(), ids=BREACHES_IN)
def test_a_change_that_refuses_old_producers_is_found(change: Callable[[Schema], Any]) -> None:
    """Whatever was accepted as `session-completed` must stay accepted."""
    old = load_schema("session-completed")
    new = copy.deepcopy(old)
    change(new)

    assert breaches(old, new, "in") != []


@pytest.mark.parametrize("change", BREACHES_OUT.values(), ids=BREACHES_OUT)
def test_a_change_that_old_consumers_cannot_read_is_found(change: Callable[[Schema], Any]) -> None:
    """Whatever a consumer of `scoring.completed` may rely on must stay."""
    old = load_schema("scoring-completed")
    new = copy.deepcopy(old)
    change(new)

    assert breaches(old, new, "out") != []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(pytest.param("session-completed", c, id=f"in-{i}") for i, c in ALLOWED_IN.items()),
        *(pytest.param("scoring-completed", c, id=f"out-{i}") for i, c in ALLOWED_OUT.items()),
    ],
)
def test_a_change_that_hurts_nobody_is_allowed(name: str, change: Callable[[Schema], Any]) -> None:
    """The comparison does not stand in the way of additions."""
    old = load_schema(name)
    new = copy.deepcopy(old)
    change(new)

    assert breaches(old, new, direction_of(name)) == []
