"""
Environment and YAML are read into settings, or the start is refused with the path and the reason.

Environment first (`SCORING_*`, `OPENAI_*`), then the YAML file that `SCORING_CONFIG` names; inside the
file `defaults` are overridden per chain. Secrets come from the environment or from files (`*_FILE`).
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tarsy_scoring.config.gates import GATE_TYPES
from tarsy_scoring.config.settings import (
    ALIASES,
    DEFAULT_BASE_URL,
    DEFAULT_MODEL,
    SECRETS_FROM_FILES,
    BudgetSettings,
    ChainSettings,
    CompositeWeights,
    Config,
    EvidenceSettings,
    GateSettings,
    JudgeSettings,
    Prices,
    ProviderSettings,
    RetentionSettings,
    Settings,
    variable_of,
)
from tarsy_scoring.errors import ConfigurationError

_NOT_FROM_ENVIRONMENT = {"config", "unknown_variables"}


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """
    Read environment and YAML.

    An empty variable counts as not set, as compose files and charts leave them.

    Raises:
        ConfigurationError: Naming the variable or the path in the file, and the reason.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    known = {"SCORING_CONFIG"}
    for field in Settings.model_fields:
        if field in _NOT_FROM_ENVIRONMENT:
            continue
        variable = variable_of(field)
        known |= {variable, ALIASES.get(field, variable)}
        if value := environ.get(variable) or environ.get(ALIASES.get(field, "")):
            values[field] = value
        if field in SECRETS_FROM_FILES:
            known.add(variable + "_FILE")
            if file := environ.get(variable + "_FILE"):
                if value:
                    raise ConfigurationError(f"{variable} and {variable}_FILE are both set: keep one")
                values[field] = read_secret(Path(file), variable + "_FILE")
    values["unknown_variables"] = tuple(sorted(v for v in environ if v.startswith("SCORING_") and v not in known))
    path = environ.get("SCORING_CONFIG")
    values["config"] = _load_config(Path(path) if path else None, environ)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, variable_of)) from None


def read_api_key(settings: Settings, provider: str, environ: Mapping[str, str] | None = None) -> str | None:
    """
    The key of a provider; None where it needs none.

    Raises:
        ConfigurationError: Its variable is not set, or its file cannot be read.
    """
    environ = os.environ if environ is None else environ
    wanted = settings.config.providers[provider]
    if wanted.api_key_file is not None:
        return read_secret(wanted.api_key_file, f"providers.{provider}.api_key_file")
    if wanted.api_key_env is None:
        return None
    if key := environ.get(wanted.api_key_env):
        return key
    if file := environ.get(wanted.api_key_env + "_FILE"):
        return read_secret(Path(file), wanted.api_key_env + "_FILE")
    raise ConfigurationError(
        f"providers.{provider}: the variable {wanted.api_key_env} is not set; "
        f"set it (or {wanted.api_key_env}_FILE), or say `api_key_env: null` for an endpoint without keys"
    )


def read_secret(path: Path, what: str) -> str:
    """Raises: ConfigurationError: The file, which `what` names, cannot be read or is empty."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{what}: cannot read {path}: {reason}") from None
    if not secret:
        raise ConfigurationError(f"{what}: {path} is empty")
    return secret


def _load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """The YAML with chains completed from `defaults` and, where it names no provider, the default one."""
    raw = _read_yaml(path, environ) if path else {}
    where = str(path) if path else "configuration"
    defaults, chains = raw.get("defaults") or {}, raw.get("chains") or {}
    if isinstance(defaults, dict) and isinstance(chains, dict):
        raw["chains"] = {k: {**defaults, **(v or {})} if isinstance(v or {}, dict) else v for k, v in chains.items()}
    if not raw.get("providers"):
        raw["providers"] = {
            "default": {
                "base_url": environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL,
                "model": environ.get("SCORING_JUDGE_MODEL") or DEFAULT_MODEL,
            }
        }
    for section in [k for k, v in raw.items() if v is None]:
        del raw[section]  # `chains:` with nothing under it
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {_explain(error)}") from None
    config = _with_default_providers(config)
    named = {"defaults": config.defaults} | {f"chains.{k}": v for k, v in config.chains.items()}
    for name, chain in named.items():
        for provider in chain.providers:
            if provider not in config.providers:
                raise ConfigurationError(
                    f"{where}: {name}.providers: no provider is called {provider!r}"
                    f"{_nearest(provider, config.providers)}"
                )
    if path:
        dirs = tuple(d if d.is_absolute() else path.parent / d for d in config.criteria_dirs)
        config = config.model_copy(update={"criteria_dirs": dirs})
    return config


def _with_default_providers(config: Config) -> Config:
    """Where a chain lists no providers, all of them in the order of the file."""
    everyone = tuple(config.providers)

    def complete(chain: ChainSettings) -> ChainSettings:
        return chain if chain.providers else chain.model_copy(update={"providers": everyone})

    return config.model_copy(
        update={
            "defaults": complete(config.defaults),
            "chains": {name: complete(chain) for name, chain in config.chains.items()},
        }
    )


def _read_yaml(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
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
    filled = _interpolate(loaded, environ, str(path), "")
    assert isinstance(filled, dict)
    return filled


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def _interpolate(value: Any, environ: Mapping[str, str], file: str, path: str) -> Any:
    """`${VAR}` and `${VAR:-default}` in every string; a variable that is not set and has no default is an error."""
    if isinstance(value, dict):
        return {k: _interpolate(v, environ, file, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolate(v, environ, file, f"{path}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        found = environ.get(match["name"]) or match["default"]
        if found is None:
            raise ConfigurationError(f"{file}: {path}: the variable {match['name']} is not set and has no default")
        return found

    return _VARIABLE.sub(fill, value)


def _explain(error: ValidationError, spell: Any = None) -> str:
    """One line per fault: where, what is wrong, and the nearest name that exists. Never the value."""
    lines = []
    for fault in error.errors(include_input=False, include_url=False):
        parts = [str(p) for p in fault["loc"]]
        if spell and parts:
            parts[0] = spell(parts[0])
        at = _gate_type_at(parts)
        where = ".".join(part for place, part in enumerate(parts) if place != at)
        if fault["type"] == "extra_forbidden":
            lines.append(f"{where}: no such key{_nearest(parts[-1], _keys_beside(parts))}")
        elif fault["type"] == "union_tag_invalid":
            lines.append(f"{where}.type: no such gate{_nearest(fault['ctx']['tag'], GATE_TYPES)}")
        elif fault["type"] == "union_tag_not_found":
            lines.append(f"{where}.type: Field required{_nearest('', GATE_TYPES)}")
        else:
            reason = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {reason}" if where else reason)
    return "; ".join(lines)


def _gate_type_at(parts: list[str]) -> int | None:
    """Where the path of a fault inside of a gate holds the gate's type, which does not stand in the YAML like that."""
    chain = {"defaults": 1, "chains": 2}.get(parts[0] if parts else "")
    return chain + 2 if chain and len(parts) > chain + 2 and parts[chain] == "gates" else None


def _keys_beside(parts: list[str]) -> list[str]:
    """The keys that would have been right at this place of the YAML."""
    if (at := _gate_type_at(parts)) is not None:
        return list(GATE_TYPES[parts[at]].model_fields)
    if len(parts) == 1:
        return list(Config.model_fields)
    models: dict[str, type[BaseModel]] = {
        "providers": ProviderSettings,
        "defaults": ChainSettings,
        "chains": ChainSettings,
        "budget": BudgetSettings,
        "evidence": EvidenceSettings,
        "gates": GateSettings,
        "retention": RetentionSettings,
    }
    inner: dict[str, type[BaseModel]] = {
        "judge": JudgeSettings,
        "composite": CompositeWeights,
        "prices_usd_per_million_tokens": Prices,
    }
    is_named = parts[0] in ("providers", "chains")
    holder = parts[-2] if len(parts) > 2 + is_named else ""
    return list(inner.get(holder, models.get(parts[0], Config)).model_fields)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (known: {', '.join(sorted(known))})"
