"""Secrets that rotate without a restart: their files are read again when they change."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import structlog
from pydantic import SecretStr

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.config.watched_file import WatchedFile
from tarsy_scoring.errors import ConfigurationError, SettingMissing

log = structlog.get_logger()


class WatchedSecret(WatchedFile[str]):
    """
    The content of a file, without white space around it. It is never logged.

    Raises:
        ConfigurationError: At the start the file is missing, empty or not UTF-8.
    """

    def __init__(self, path: Path, setting: str) -> None:
        self._setting = setting
        super().__init__(path, setting)

    def _parse(self, content: bytes) -> str:
        try:
            secret = content.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._where} cannot be read: it is not UTF-8") from None
        if not secret:
            raise ConfigurationError(f"{self._where} is empty")
        return secret

    def _note_reloaded(self, content: str) -> None:
        log.info("secret.reloaded", setting=self._setting, path=str(self.path))

    def _note_broken(self, reason: str) -> None:
        log.error("secret.broken", reason=reason, effect="what was read before stays in force")


def current(secret: str | WatchedSecret | None) -> str | None:
    """The secret as it is now."""
    return secret.current() if isinstance(secret, WatchedSecret) else secret


def read_api_key(
    settings: Settings, provider: str, environ: Mapping[str, str] | None = None
) -> str | WatchedSecret | None:
    """
    The API key of a provider, watched where it is in a file; None: its endpoint needs none.

    Raises:
        SettingMissing: The variable is not set.
        ConfigurationError: The file cannot be read.
    """
    environ = os.environ if environ is None else environ
    wanted = settings.config.providers[provider]
    if wanted.api_key_file is not None:
        return WatchedSecret(wanted.api_key_file, f"providers.{provider}.api_key_file")
    if wanted.api_key_env is None:
        return None
    if key := environ.get(wanted.api_key_env):
        return key
    if file := environ.get(wanted.api_key_env + "_FILE"):
        return WatchedSecret(Path(file), wanted.api_key_env + "_FILE")
    raise SettingMissing(
        f"providers.{provider}: the variable {wanted.api_key_env} is not set; "
        f"set it (or {wanted.api_key_env}_FILE), or write `api_key_env: null` for an endpoint without keys"
    )


def read_destination_secret(
    settings: Settings,
    destination: str,
    key: Literal["url", "secret"],
    environ: Mapping[str, str] | None = None,
) -> str | WatchedSecret:
    """
    The address of a destination, or its secret; watched where it is in a file.

    Raises:
        SettingMissing: The variable is not set.
        ConfigurationError: The file cannot be read.
    """
    environ = os.environ if environ is None else environ
    wanted = settings.config.destinations[destination]
    path: Path | None = getattr(wanted, f"{key}_file")
    if path is not None:
        return WatchedSecret(path, f"destinations.{destination}.{key}_file")
    variable: str = getattr(wanted, f"{key}_env")
    if value := environ.get(variable):
        return value
    if file := environ.get(variable + "_FILE"):
        return WatchedSecret(Path(file), variable + "_FILE")
    raise SettingMissing(
        f"destinations.{destination}: the variable {variable} is not set; set it or {variable}_FILE"
    )


def secret_source(
    settings: Settings, field: str, environ: Mapping[str, str] | None = None
) -> Callable[[], str]:
    """
    Return a function that gives the secret of a field; one that `*_FILE` names is read again when it changes.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    environ = os.environ if environ is None else environ
    variable = variable_of(field) + "_FILE"
    if file := environ.get(variable):
        return WatchedSecret(Path(file), variable).current
    secret: SecretStr = getattr(settings, field)
    return secret.get_secret_value


def database_url_source(settings: Settings) -> Callable[[], str]:
    """As `secret_source`, of our database. Raises: ConfigurationError: `SCORING_DATABASE_URL` is not set."""
    settings.require_database()
    return secret_source(settings, "database_url")
