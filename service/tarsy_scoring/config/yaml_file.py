"""Reads the YAML file and fills in environment variables."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tarsy_scoring.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_LOGIN_HEADER = re.compile(r"(?i)(?:proxy-)?authorization|cookie|(?:x-)?(?:api|auth|access)-?(?:key|token)")
_LOGIN = re.compile(r"(?i)(?:bearer|basic) ")


def read_yaml(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """
    The mapping in the file, with `${VAR}` and `${VAR:-default}` replaced in every string.

    Raises:
        ConfigurationError: The file cannot be read, holds no mapping, holds a login, or names variables that
            are neither set nor have a default. With the line, or the path of each key.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:  # a date or an integer that Python cannot hold is a ValueError
        raise ConfigurationError(f"SCORING_CONFIG: cannot read {path}: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:  # the second: nested too deeply
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: expected a mapping at the top, found {type(loaded).__name__}")
    faults = list(_logins(loaded.get("providers")))
    filled = {key: _fill(value, environ, str(key), faults) for key, value in loaded.items()}
    if faults:
        raise ConfigurationError("\n".join(f"{path}: {fault}" for fault in faults))
    return filled


def _logins(providers: Any) -> Iterator[str]:
    """Logins that stand in the file itself. The validation reports wrong types."""
    for name, provider in providers.items() if isinstance(providers, dict) else ():
        given = provider if isinstance(provider, dict) else {}
        for header in _login_headers(given.get("extra_headers")):
            yield f"providers.{name}.extra_headers.{header}: {_ADVICE}"
        if "@" in str(proxy := given.get("proxy")) and not _VARIABLE.search(str(proxy)):
            yield f"providers.{name}.proxy: {_ADVICE}"


def _login_headers(headers: Any) -> Iterator[str]:
    for header, value in headers.items() if isinstance(headers, dict) else ():
        is_login = _LOGIN_HEADER.fullmatch(str(header)) or _LOGIN.match(str(value))
        if is_login and not _VARIABLE.search(str(value)):
            yield header


_ADVICE = "a secret must not stand in the file: write ${VARIABLE} in its place"


def _fill(value: Any, environ: Mapping[str, str], key: str, faults: list[str]) -> Any:
    """Replace variables in the value; add each unset variable to `faults`."""
    if isinstance(value, dict):
        return {k: _fill(v, environ, f"{key}.{k}", faults) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, environ, f"{key}[{i}]", faults) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        found = environ.get(match["name"]) or match["default"]
        if found is None:
            faults.append(f"{key}: the variable {match['name']} is not set and has no default")
        return found or ""

    return _VARIABLE.sub(variable, value)
