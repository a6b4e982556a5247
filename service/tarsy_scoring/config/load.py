"""
Reads the settings: environment variables first, then the YAML file that `SCORING_CONFIG` names.

In the file each chain inherits from `defaults`. Secrets come from the environment or from files (`*_FILE`),
never from the YAML.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from tarsy_scoring.config.chains import ChainSettings, Config
from tarsy_scoring.config.explain import explain, suggest
from tarsy_scoring.config.notifications import secret_variables
from tarsy_scoring.config.secrets import WatchedSecret
from tarsy_scoring.config.settings import SECRETS, Settings, variable_of
from tarsy_scoring.config.yaml_file import read_yaml
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.url import check_url

_PREFIX = "SCORING_"
_VARIABLES = {variable_of(field) for field in Settings.model_fields if field != "unknown_variables"}
_VARIABLES |= {f"{variable_of(secret)}_FILE" for secret in SECRETS}
# Variables of the first design, whose documents people still follow.
_SUCCESSORS = {
    "SCORING_LLM_MODEL": "SCORING_JUDGE_MODEL",
    "SCORING_LLM_PROVIDER": "OPENAI_BASE_URL, or providers in the file of SCORING_CONFIG",
}


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """
    Read the settings from the environment and the YAML file.

    An empty variable counts as not set: compose files and charts leave such variables behind.

    Raises:
        ConfigurationError: Naming the variable, or the path in the file, and the reason.
    """
    environ = os.environ if environ is None else environ
    variables = EnvSettingsSource(Settings)
    variables.env_vars = {name.lower(): value for name, value in environ.items() if value}
    values = variables() | _secrets_in_files(environ)
    path = environ.get("SCORING_CONFIG")
    values["config"] = config = _load_config(Path(path) if path else None, environ)
    values["unknown_variables"] = _unknown_variables(config, environ)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, variable_of)) from None
    # A connection with a wrong URL would fail as if the database were away, and be repeated for ever.
    for name in ("database_url", "timeline_database_url", "write_back_database_url"):
        if url := getattr(settings, name):
            check_url(url.get_secret_value(), variable_of(name))
    return settings


def nearest_variable(unknown: str) -> str | None:
    """The successor of an unknown variable, or the one that is spelt most like it; None if none is near."""
    # Without the prefix that all share, which would make any two names look alike.
    names = [name.removeprefix(_PREFIX) for name in sorted(_VARIABLES)]
    close = get_close_matches(unknown.removeprefix(_PREFIX), names, n=1)
    return _SUCCESSORS.get(unknown) or (_PREFIX + close[0] if close else None)


def _secrets_in_files(environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for field in SECRETS:
        variable = variable_of(field)
        if file := environ.get(f"{variable}_FILE"):
            if environ.get(variable):
                raise ConfigurationError(f"{variable} and {variable}_FILE are both set: keep one")
            found[field] = WatchedSecret(Path(file), f"{variable}_FILE").current()
    return found


def _unknown_variables(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables with our prefix that neither we nor the file know: misspelt, or another program's."""
    keys = {provider.api_key_env for provider in config.providers.values() if provider.api_key_env}
    keys |= {variable for target in config.notifications.values() for variable in secret_variables(target)}
    known = {*_VARIABLES, *keys, *(f"{key}_FILE" for key in keys)}
    return tuple(sorted(name for name in environ if name.startswith(_PREFIX) and name not in known))


def _load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    where = str(path) if path else "configuration"
    try:
        config = Config.model_validate(_read_sections(path, environ))
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


def _read_sections(path: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    raw = read_yaml(path, environ) if path else {}
    raw = {section: value for section, value in raw.items() if value is not None}  # such as a bare `chains:`
    raw["chains"] = _inherit(raw.get("chains") or {}, raw.get("defaults") or {})
    raw["providers"] = raw.get("providers") or {"default": _default_provider(environ)}
    return raw


def _default_provider(environ: Mapping[str, str]) -> dict[str, str]:
    given = {"base_url": environ.get("OPENAI_BASE_URL"), "model": environ.get("SCORING_JUDGE_MODEL")}
    return {key: value for key, value in given.items() if value}


def _inherit(chains: Any, defaults: Any) -> Any:
    """
    Each chain, completed from `defaults` except for `pass_threshold`: that of the chain's criteria comes
    between the two. The validation reports values with a wrong type.
    """
    if not isinstance(chains, dict) or not isinstance(defaults, dict):
        return chains
    defaults = {key: value for key, value in defaults.items() if key != "pass_threshold"}
    return {name: {**defaults, **(c or {})} if isinstance(c or {}, dict) else c for name, c in chains.items()}


def _require_known_providers(config: Config, where: str) -> None:
    unknown = [
        f"{where}: {name}.{key}: no provider is called {provider!r}{suggest(provider, config.providers)}"
        for name, chain in config.named_chains.items()
        for key, provider in chain.named_providers
        if provider not in config.providers
    ]
    if unknown:
        raise ConfigurationError("\n".join(unknown))


def _with_providers(chain: ChainSettings, config: Config) -> ChainSettings:
    """Give a chain that lists no providers all of them, in file order."""
    return chain if chain.providers else chain.model_copy(update={"providers": tuple(config.providers)})
