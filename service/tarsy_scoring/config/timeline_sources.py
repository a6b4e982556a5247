"""
The registry of timeline sources: the values of `SCORING_TIMELINE_SOURCE`.

A new source is one module and one entry in `SOURCES`; see docs/extending.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema


@dataclass(frozen=True, slots=True)
class RegisteredSource:
    """
    One timeline source.

    Args:
        factory: `package.module:function`. The function takes the settings and returns a `TimelineSource`
            that has connected to nothing yet; it raises `ConfigurationError` where the settings can never
            work.
        requires: Fields of the settings that must be set, each with a description of valid values.
    """

    # A path and not the function itself: settings must not import the layers above them, nor a client library
    # that is not used.
    factory: str
    requires: Mapping[str, str] = field(default_factory=dict)


SOURCES: dict[str, RegisteredSource] = {
    "tarsy-db": RegisteredSource(
        "tarsy_scoring.tarsy.timeline_db:open_tarsy_database",
        {"timeline_database_url": "give TARSy's PostgreSQL"},
    ),
    "tarsy-api": RegisteredSource(
        "tarsy_scoring.tarsy.timeline_api:open_tarsy_api",
        {"timeline_api_url": "give the address of TARSy's API"},
    ),
    "files": RegisteredSource(
        "tarsy_scoring.timeline.files:open_session_files",
        {"timeline_dir": "name the folder of session files"},
    ),
}


def source_names() -> str:
    """The names of all sources for a sentence: `a, b or c`."""
    *others, last = SOURCES
    return f"{', '.join(others)} or {last}" if others else last


def _require_registered(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(f"expected {source_names()}")
    return name


TimelineSourceName = Annotated[
    str, AfterValidator(_require_registered), WithJsonSchema({"enum": list(SOURCES), "type": "string"})
]
