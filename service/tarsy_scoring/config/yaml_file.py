"""Reads the YAML file and fills in environment variables."""

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from tarsy_scoring.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
MAX_VALUES = 100_000  # with those that aliases repeat
_LOGIN_HEADER = re.compile(r"(?i)(?:proxy-)?authorization|cookie|(?:x-)?(?:api|auth|access)-?(?:key|token)")
_LOGIN = re.compile(r"(?i)(?:bearer|basic) ")


class _KeyIsNoText(yaml.MarkedYAMLError):
    pass


class _TextKeys(yaml.SafeLoader):
    """Refuses a key that YAML does not read as text, such as a chain called `off`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises: _KeyIsNoText: With the key and its line."""
        self.flatten_mapping(node)  # resolves merge keys (`<<`)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (reading := reading_of(self.construct_object(key))):
                problem = f"the key {key.value} is read as {reading}: put it in quotes"
                raise _KeyIsNoText(problem=problem, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def reading_of(value: object) -> str | None:
    """How YAML has read a word without quotes that may have been meant as text; None: as text."""
    if isinstance(value, bool):
        return "true or false, like yes, no, on and off"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, date):
        return "a date"
    return "no value" if value is None else None


def read_yaml(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """
    The mapping in the file, with `${VAR}` and `${VAR:-default}` replaced in every string.

    Raises:
        ConfigurationError: The file cannot be read, holds no mapping, or names variables that are neither set
            nor have a default. With the line, or the path of each key.
    """
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), _TextKeys)  # noqa: S506  # a safe loader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"SCORING_CONFIG: cannot read {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", error)
        what = problem if isinstance(error, _KeyIsNoText) else f"not YAML: {problem}"
        raise ConfigurationError(f"{path}{line}: {what}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: expected a mapping at the top, found {type(loaded).__name__}")
    _require_bounded(loaded, path)
    _require_no_secret(loaded.get("providers"), path)
    unset: list[str] = []
    filled = {key: _fill(value, environ, str(key), unset) for key, value in loaded.items()}
    if unset:
        raise ConfigurationError("\n".join(f"{path}: {place}" for place in unset))
    return filled


def _require_bounded(loaded: Any, path: Path) -> None:
    """
    Refuse nested aliases, which turn 400 bytes into more values than memory holds, and aliases of themselves.
    """
    values, found = [loaded], 0
    while values:
        value = values.pop()
        found += 1
        if found > MAX_VALUES:
            raise ConfigurationError(
                f"{path}: more than {MAX_VALUES:,} values; do its aliases repeat each other?"
            )
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


def _require_no_secret(providers: Any, path: Path) -> None:
    """
    Refuse a login that stands in the file itself. A value of a wrong type is left for the validation to
    report.
    """
    for name, provider in providers.items() if isinstance(providers, dict) else ():
        given = provider if isinstance(provider, dict) else {}
        headers = given.get("extra_headers")
        for header, value in headers.items() if isinstance(headers, dict) else ():
            if _LOGIN_HEADER.fullmatch(str(header)) or _LOGIN.match(str(value)):
                _require_variable(value, f"{path}: providers.{name}.extra_headers.{header}")
        if "@" in str(given.get("proxy")):
            _require_variable(given["proxy"], f"{path}: providers.{name}.proxy")


def _require_variable(value: Any, key: str) -> None:
    if not _VARIABLE.search(str(value)):
        raise ConfigurationError(
            f"{key}: a secret must not stand in the file: write ${{VARIABLE}} in its place"
        )


def _fill(value: Any, environ: Mapping[str, str], key: str, unset: list[str]) -> Any:
    """The value with its variables replaced; adds to `unset` where one has no value."""
    if isinstance(value, dict):
        return {k: _fill(v, environ, f"{key}.{k}", unset) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, environ, f"{key}[{i}]", unset) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        found = environ.get(match["name"]) or match["default"]
        if found is None:
            unset.append(f"{key}: the variable {match['name']} is not set and has no default")
        return found or ""

    return _VARIABLE.sub(variable, value)
