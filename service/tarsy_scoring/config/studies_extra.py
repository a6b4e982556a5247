"""
Loads modules of `studies`, the room that nothing imports by name.

The extra `studies` installs numpy and scipy. Without them the room's verbs, pages and tasks are not
listed.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


@cache
def has_studies() -> bool:
    """Whether the extra `studies` is installed."""
    return find_spec("scipy") is not None


def load_studies(module: str) -> ModuleType | None:
    """A module of `studies`; None without the extra."""
    return import_module(f"tarsy_scoring.studies.{module}") if has_studies() else None
