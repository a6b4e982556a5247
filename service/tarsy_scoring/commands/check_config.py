"""
`check-config`: shows the settings that differ from their defaults, or all of them, and reports errors in
them.
"""

import math
import os
import re
from functools import partial
from typing import Any

import click
import yaml

from tarsy_scoring.commands.shared import (
    collected_warnings,
    in_words,
    json_option,
    print_json,
    print_text,
    settings_of_environment,
)
from tarsy_scoring.config.chains import ChainSettings, Config
from tarsy_scoring.config.settings import SECRETS, Settings, variable_of
from tarsy_scoring.errors import ConfigurationError, SettingMissing, errors_of
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.timeline.clean.masking import mask_secrets
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.wiring import ROLES, setting_errors, warn_of_settings

HIDDEN = "***"
_USERINFO = re.compile(r"(?<=//)\S*@")


@click.command("check-config")
@click.option("--all", "shows_all", is_flag=True, help="Show settings that have their default value, too.")
@json_option
def check_config(shows_all: bool, as_json: bool) -> None:
    """
    Show the settings in force and report errors in them.

    Shows the settings that differ from their defaults (those of a chain: from `defaults` in the YAML),
    without secrets. Makes every check that needs no connection. Exit status 2 if a setting is wrong: stderr
    names all that are. A setting that is not set is no error here, so that a file can be checked alone: the
    output lists what a worker still needs. --json has every setting.
    """
    settings = settings_of_environment()
    with collected_warnings() as warnings:
        errors = [*setting_errors(settings, ROLES, os.environ), *errors_of(partial(Access, settings))]
        missing = [str(error) for error in errors if isinstance(error, SettingMissing)]
        if wrong := [str(error) for error in errors if not isinstance(error, SettingMissing)]:
            raise ConfigurationError("\n".join(wrong))
        warn_of_settings(settings, ROLES)
    is_brief = not (shows_all or as_json)
    document: dict[str, Any] = {
        "environment": _shown_environment(settings, is_brief=is_brief),
        "config": _shown_config(settings.config, is_brief=is_brief),
        "criteria": {c.name: c.criteria_hash for c in load_criteria(settings.config.criteria_dirs)},
        "unknown_variables": list(settings.unknown_variables),
        "file": os.environ.get("SCORING_CONFIG") or None,
        "not_set": missing,
        "warnings": warnings,
    }
    text = yaml.safe_dump(document["config"], allow_unicode=True, sort_keys=False, width=math.inf)
    more = {"config_text": text, "warnings": [in_words(w) for w in warnings], "shows_all": shows_all}
    print_json(document) if as_json else print_text("settings.txt", document | more)


# --- settings without secrets --------------------------------------------------------------------------


def _shown_environment(settings: Settings, *, is_brief: bool) -> dict[str, Any]:
    ours = {"config", "unknown_variables"}
    shown = settings.model_dump(mode="json", exclude=ours, exclude_defaults=is_brief)
    for name in shown.keys() & set(SECRETS):
        shown[name] = "(set)" if shown[name] else None
    return {variable_of(name): _masked(value) for name, value in shown.items()}


def _shown_config(config: Config, *, is_brief: bool) -> dict[str, Any]:
    shown = config.model_dump(mode="json", exclude_defaults=is_brief)
    for provider in shown.get("providers", {}).values():
        if provider.get("extra_headers"):
            provider["extra_headers"] = dict.fromkeys(provider["extra_headers"], HIDDEN)
        if provider.get("proxy"):  # the only URL that may hold a password
            provider["proxy"] = HIDDEN
    for name, chain in config.chains.items():
        left_out = {"pass_threshold"} - chain.model_fields_set  # null would mean that it has no threshold
        if is_brief:
            same = (n for n in ChainSettings.model_fields if getattr(chain, n) == getattr(config.defaults, n))
            left_out |= set(same)
        shown["chains"][name] = chain.model_dump(mode="json", exclude=left_out, exclude_unset=is_brief)
    if is_brief:
        if config.defaults.providers == tuple(config.providers):  # as where it lists none
            del shown["defaults"]["providers"]
        shown = {key: value for key, value in shown.items() if value not in ({}, {"default": {}})}
    masked: dict[str, Any] = _masked(shown)
    return masked


def _masked(value: Any) -> Any:
    """Mask secrets in every string, for example in a gate's command."""
    if isinstance(value, str):
        return mask_secrets(_USERINFO.sub(f"{HIDDEN}@", value))
    if isinstance(value, dict):
        return {name: _masked(item) for name, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value
