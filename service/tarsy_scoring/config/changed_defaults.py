"""
Reports the defaults that differ from those of the previous version, before an upgrade puts them in force.
"""

from collections.abc import Sequence
from typing import Any

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.config.settings import Settings


def previous_version() -> str:
    """The commit of the version that this one upgrades and can be rolled back to."""
    return str(_announced()["previous_version"])


def changed_defaults(settings: Settings) -> list[dict[str, Any]]:
    """
    Each changed default with `setting`, `was`, `now`, `effect` and `is_set`.

    `is_set` states that the environment or the file sets it, so that the change has no effect there. A key
    with `*` in its path is set if every entry of that map sets it.
    """
    return [
        dict(change) | {"is_set": _is_set(settings, _path_of(change["setting"]))}
        for change in _announced()["changed"]
    ]


def _announced() -> Any:
    return packaged_yaml("tarsy_scoring.config", "changed_defaults.yaml")


def _path_of(setting: str) -> Sequence[str]:
    if setting.startswith("SCORING_"):
        return [setting.removeprefix("SCORING_").lower()]
    return ["config", *setting.split(".")]


def _is_set(record: Any, path: Sequence[str]) -> bool:
    key, *rest = path
    if key == "*":
        return all(_is_set(entry, rest) for entry in record.values())
    if not rest:
        return key in record.model_fields_set
    section = getattr(record, key)
    return section is None or _is_set(section, rest)  # a default within a section that is off has no effect
