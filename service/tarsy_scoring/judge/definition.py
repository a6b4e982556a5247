"""
The keys in a criteria file and the rules for each key by itself.

A strategy reads a `Definition`. `criteria.Criteria` adds the rules between keys and the hash.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from tarsy_scoring.config.explain import suggest
from tarsy_scoring.config.values import Frozen

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Prompt = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Points = Annotated[int, Field(ge=0, le=100)]

Bands = Mapping[str, tuple[int, int]]
"""Lowest and highest total by outcome."""

PLACEHOLDERS = ("ALERT_DATA", "SESSION_CONVERSATION", "OUTPUT_SCHEMA")
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]+)\s*\}\}")


class Category(Frozen):
    """A part of the total. `max_points` over all categories add up to 100."""

    id: Identifier
    max_points: int = Field(ge=1, le=100)


class RubricItem(Frozen):
    """One weighted criterion in a `rubric`. The weights add up to 1."""

    id: Identifier
    weight: float = Field(gt=0, le=1)
    description: Prompt


class Definition(Frozen):
    """
    What a criteria file holds. Prompts are stored without leading and trailing white space.

    `meaning` tells people what a total means; the judge does not read it. `notes` are about a domain; a chain's
    notes replace them.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    strategy: str = "two_turn"
    meaning: Prompt | None = None
    system_prompt: Prompt
    notes: Prompt | None = None
    prompt: Prompt
    follow_up_prompt: Prompt | None = None
    reminder_prompt: Prompt | None = None
    categories: tuple[Category, ...] = ()
    bands: dict[Identifier, tuple[Points, Points]] = Field(default_factory=dict)
    failure_vocabulary: dict[Identifier, str] = Field(default_factory=dict)
    rubric: tuple[RubricItem, ...] = ()
    pass_threshold: Annotated[float, Field(ge=0, le=1)] | None = None

    @field_validator("prompt")
    @classmethod
    def _has_its_placeholders(cls, value: str) -> str:
        used = Counter(PLACEHOLDER.findall(value))
        for name in used:
            if name not in PLACEHOLDERS:
                raise ValueError(f"no such placeholder as {{{{{name}}}}}{suggest(name, PLACEHOLDERS)}")
        for name in PLACEHOLDERS:
            if used[name] != 1:
                raise ValueError(
                    f"the placeholder {{{{{name}}}}} must appear exactly once, found {used[name]} times"
                )
        return value

    @field_validator("system_prompt", "follow_up_prompt", "reminder_prompt")
    @classmethod
    def _has_no_placeholders(cls, value: str | None) -> str | None:
        # Evidence in a second place would be paid for twice, and no fence notice would cover it.
        if value and (found := PLACEHOLDER.search(value)):
            raise ValueError(
                f"the placeholder {found[0]} is allowed in `prompt` only: evidence has one place"
            )
        return value

    @field_validator("categories", "rubric")
    @classmethod
    def _has_unique_ids(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        repeated = [item for item, times in Counter(v.id for v in value).items() if times > 1]
        if repeated:
            raise ValueError(f"the id {repeated[0]!r} is given twice")
        return value

    @field_validator("bands")
    @classmethod
    def _has_separate_bands(cls, value: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        in_order = sorted(value.items(), key=lambda band: band[1])
        for name, (low, high) in in_order:
            if low > high:
                raise ValueError(f"the band {name!r} is [{low}, {high}]: the lower end comes first")
        for (lower, (_, end)), (upper, (start, _)) in pairwise(in_order):
            if start <= end:
                raise ValueError(f"the bands {lower!r} and {upper!r} overlap at {start}")
        return value

    @property
    def max_points(self) -> dict[str, int]:
        """Highest points by category id, in file order."""
        return {c.id: c.max_points for c in self.categories}
