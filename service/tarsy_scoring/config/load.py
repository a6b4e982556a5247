"""
Reads the settings: environment variables first, then the YAML file that `SCORING_CONFIG` names.

In the file each chain inherits from `defaults`. Secrets come from the environment or from files (`*_FILE`),
never from the YAML.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tarsy_scoring.config.explain import explain, suggest
from tarsy_scoring.config.settings import (
    SECRETS_FROM_FILES,
    ChainSettings,
    Config,
    Settings,
    variable_of,
)
from tarsy_scoring.config.yaml_file import read_yaml
from tarsy_scoring.errors import ConfigurationError

_PREFIX = "SCORING_"
_NOT_FROM_ENVIRONMENT = {"config", "unknown_variables"}


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """
    Read the settings from the environment and the YAML file.

    An empty variable counts as not set: compose files and charts leave such variables behind.

    Raises:
        ConfigurationError: Naming the variable, or the path in the file, and the reason.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for field in _fields_from_environment():
        variable = variable_of(field)
        if value := environ.get(variable):
            values[field] = value
        if field in SECRETS_FROM_FILES and (file := environ.get(variable + "_FILE")):
            if value:
                raise ConfigurationError(f"{variable} and {variable}_FILE are both set: keep one")
            values[field] = read_secret(Path(file), variable + "_FILE")
    path = environ.get("SCORING_CONFIG")
    values["config"] = config = _load_config(Path(path) if path else None, environ)
    keys = {provider.api_key_env for provider in config.providers.values() if provider.api_key_env}
    keys |= {name for d in config.destinations.values() for name in (d.url_env, d.secret_env) if name}
    known = {*_known_variables(), *keys, *(f"{key}_FILE" for key in keys)}
    values["unknown_variables"] = tuple(
        sorted(v for v in environ if v.startswith(_PREFIX) and v not in known)
    )
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, variable_of)) from None


def nearest_variable(unknown: str) -> str | None:
    """The variable with the spelling nearest to that of an unknown one; None if none is near."""
    from difflib import get_close_matches  # only for an error

    # Without the prefix that all share, which would make any two names look alike.
    names = [name.removeprefix(_PREFIX) for name in sorted(_known_variables())]
    close = get_close_matches(unknown.removeprefix(_PREFIX), names, n=1)
    return _PREFIX + close[0] if close else None


def _fields_from_environment() -> list[str]:
    return [field for field in Settings.model_fields if field not in _NOT_FROM_ENVIRONMENT]


def _known_variables() -> set[str]:
    fields = {variable_of(field) for field in _fields_from_environment()}
    return {
        "SCORING_CONFIG",
        *fields,
        *(f"{variable_of(f)}_FILE" for f in SECRETS_FROM_FILES),
    }


def read_secret(path: Path, setting: str) -> str:
    """
    The content of a file, without white space around it.

    Args:
        setting: Names the file in the error.

    Raises:
        ConfigurationError: The file cannot be read, or is empty.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{setting}: cannot read {path}: {reason}") from None
    if not secret:
        raise ConfigurationError(f"{setting}: {path} is empty")
    return secret


def _load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    where = str(path) if path else "configuration"
    raw = read_yaml(path, environ) if path else {}
    raw = {section: value for section, value in raw.items() if value is not None}  # such as a bare `chains:`
    raw["chains"] = _inherit(raw.get("chains") or {}, raw.get("defaults") or {})
    if not raw.get("providers"):
        given = {"base_url": environ.get("OPENAI_BASE_URL"), "model": environ.get("SCORING_JUDGE_MODEL")}
        raw["providers"] = {"default": {key: value for key, value in given.items() if value}}
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(explain(error, where=where)) from None
    _require_known_providers(config, where)
    dirs = tuple(d if d.is_absolute() or path is None else path.parent / d for d in config.criteria_dirs)
    return config.model_copy(
        update={
            "criteria_dirs": dirs,
            "defaults": _with_providers(config.defaults, config),
            "chains": {name: _with_providers(chain, config) for name, chain in config.chains.items()},
        }
    )


def _inherit(chains: Any, defaults: Any) -> Any:
    """
    Each chain, completed from `defaults` except for `pass_threshold`: that of the chain's criteria comes
    between the two. A value of a wrong type is left for the validation to report.
    """
    if not isinstance(chains, dict) or not isinstance(defaults, dict):
        return chains
    defaults = {key: value for key, value in defaults.items() if key != "pass_threshold"}
    return {name: {**defaults, **(c or {})} if isinstance(c or {}, dict) else c for name, c in chains.items()}


def _require_known_providers(config: Config, where: str) -> None:
    unknown = [
        f"{where}: {name}.providers: no provider is called {provider!r}{suggest(provider, config.providers)}"
        for name, chain in config.named_chains.items()
        for provider in chain.providers
        if provider not in config.providers
    ]
    if unknown:
        raise ConfigurationError("\n".join(unknown))


def _with_providers(chain: ChainSettings, config: Config) -> ChainSettings:
    """Give a chain that lists no providers all of them, in the order of the file."""
    return chain if chain.providers else chain.model_copy(update={"providers": tuple(config.providers)})
