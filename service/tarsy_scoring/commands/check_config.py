"""`check-config`: shows changed defaults and the settings in force, and reports errors in them."""

import json
import os
import re
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    check_database_urls,
    json_option,
    print_json,
    print_text,
    settings_of_environment,
)
from tarsy_scoring.config.changed_defaults import changed_defaults, previous_version
from tarsy_scoring.config.settings import SECRETS, Config, Settings, variable_of
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.timeline.masking import mask_secrets
from tarsy_scoring.wiring import ROLES, check_settings

HIDDEN = "***"
_USERINFO = re.compile(r"(?<=//)\S*@")


@click.command("check-config")
@json_option
def check_config(as_json: bool) -> None:
    """
    Show the settings in force, without secrets, and report errors in them.

    Begins with the defaults that differ from those of the previous version. Makes every check that needs no connection.
    Exit status 2 if a setting is wrong.
    """
    from tarsy_scoring.web.access import Access

    settings = settings_of_environment()
    check_database_urls(settings)
    check_settings(settings, ROLES, os.environ)
    Access(settings)  # raises for settings that `api` refuses
    document: dict[str, Any] = {
        "previous_version": previous_version(),
        "changed_defaults": changed_defaults(settings),
        "environment": _shown_environment(settings),
        "config": _shown_config(settings.config),
        "criteria": {c.name: c.criteria_hash for c in load_criteria(settings.config.criteria_dirs)},
        "unknown_variables": list(settings.unknown_variables),
    }
    text = {"config_text": json.dumps(document["config"], indent=2)}
    print_json(document) if as_json else print_text("settings.txt", document | text)


# --- settings without secrets --------------------------------------------------------------------------


def _shown_environment(settings: Settings) -> dict[str, Any]:
    shown = settings.model_dump(mode="json", exclude={"config", "unknown_variables"})
    for name in SECRETS:
        shown[name] = "(set)" if shown[name] else None
    return {variable_of(name): _masked(value) for name, value in shown.items()}


def _shown_config(config: Config) -> dict[str, Any]:
    shown = config.model_dump(mode="json")
    for provider in shown["providers"].values():
        provider["extra_headers"] = dict.fromkeys(provider["extra_headers"], HIDDEN)
        provider["proxy"] = provider["proxy"] and HIDDEN  # the only URL that may hold a password
    masked: dict[str, Any] = _masked(shown)
    return masked


def _masked(value: Any) -> Any:
    """Mask secrets in every string, for example in the command of a gate."""
    if isinstance(value, str):
        return mask_secrets(_USERINFO.sub(f"{HIDDEN}@", value))
    if isinstance(value, dict):
        return {name: _masked(item) for name, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value
