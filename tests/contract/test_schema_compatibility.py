"""
The schemas of version 1 stay compatible with the ones that were first published.

`frozen/` holds those. A field that was added since is protected once its schema is copied there anew;
a change that these tests refuse needs a version 2 beside version 1.
"""

import copy
from pathlib import Path
from typing import Any

import yaml
from compatibility import Direction, breaches
from contracts import ALL, EXAMPLES, FROZEN, INCOMING, load_schema, schema_of_example, validator

CHANGES = yaml.safe_load((Path(__file__).parent / "schema_changes.yaml").read_text("utf-8"))


def direction_of(name: str) -> Direction:
    return "in" if name in INCOMING else "out"


def test_schema_keeps_what_version_1_promised() -> None:
    """The service understands messages of old producers, and old consumers understand its messages."""
    for name in ALL:
        assert breaches(load_schema(name, FROZEN), load_schema(name), direction_of(name)) == [], name
    for example, document in EXAMPLES.items():
        validator(schema_of_example(example), FROZEN).validate(document)
    assert {f"{n}.v1.json" for n in ALL} == {p.name for p in FROZEN.iterdir()}


def edited(schema: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A changed copy of a schema; `schema_changes.yaml` explains the changes."""
    new = copy.deepcopy(schema)
    for path, value in changes.items():
        *way, last = path.split("/")
        place: Any = new
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if path == "required":
            names = {name[1:] for name in value}
            place[last] = [n for n in place[last] if n not in names] + [n[1:] for n in value if n[0] == "+"]
        elif value == "REMOVED":
            del place[last]
        else:
            place[last] = value
    return new


def test_the_comparison_finds_breaches_and_allows_additions() -> None:
    for schema_name, kinds in CHANGES.items():
        old = load_schema(schema_name)
        for kind, cases in kinds.items():
            for name, changes in cases.items():
                found = breaches(old, edited(old, changes), direction_of(schema_name))
                assert bool(found) == (kind == "breaches"), (schema_name, kind, name)
