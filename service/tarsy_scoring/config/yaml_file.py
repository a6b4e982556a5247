"""Reads the YAML file and fills in environment variables."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tarsy_scoring.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def read_yaml(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """
    The mapping in the file, with `${VAR}` and `${VAR:-default}` replaced in every string.

    Raises:
        ConfigurationError: The file cannot be read, holds no mapping, or names a variable that is neither set
            nor has a default. With the line, or the path of the key.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"SCORING_CONFIG: cannot read {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: expected a mapping at the top, found {type(loaded).__name__}")
    return {key: _fill(value, environ, str(path), str(key)) for key, value in loaded.items()}


def _fill(value: Any, environ: Mapping[str, str], file: str, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _fill(v, environ, file, f"{key}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, environ, file, f"{key}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        found = environ.get(match["name"]) or match["default"]
        if found is None:
            raise ConfigurationError(f"{file}: {key}: the variable {match['name']} is not set and has no default")
        return found

    return _VARIABLE.sub(variable, value)
