"""Secrets that rotate without a restart: their files are read again when they change."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.config.watched_file import WatchedFile
from tarsy_scoring.errors import ConfigurationError, SettingMissing


class WatchedSecret(WatchedFile[str]):
    """
    The content of a file, without white space around it. It is never logged.

    Raises:
        ConfigurationError: At the start the file is missing, empty or not UTF-8.
    """

    def _parse(self, content: bytes) -> str:
        try:
            secret = content.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._where} cannot be read: it is not UTF-8") from None
        if not secret:
            raise ConfigurationError(f"{self._where} is empty")
        return secret


Secret = str | WatchedSecret


def current(secret: Secret | None) -> str | None:
    """The secret as it is now."""
    return secret.current() if isinstance(secret, WatchedSecret) else secret


def read_api_key(
    settings: Settings, provider: str, environ: Mapping[str, str] | None = None
) -> Secret | None:
    """
    The API key of a provider, watched where it is in a file; None: the endpoint needs none.

    Raises:
        SettingMissing: The variable is not set.
        ConfigurationError: The file cannot be read.
    """
    wanted, where = settings.config.providers[provider], f"providers.{provider}"
    if wanted.api_key_file is None and wanted.api_key_env is None:
        return None
    advice = ", or write `api_key_env: null` for an endpoint without keys"
    return _read_secret(f"{where}.api_key", wanted.api_key_file, wanted.api_key_env or "", environ, advice)


def read_target_secret(where: str, variable: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """
    Return a function that gives the address or a secret of a notification target.

    Raises:
        SettingMissing: Neither the variable nor `*_FILE` is set.
        ConfigurationError: The file cannot be read.
    """
    secret = _read_secret(where, None, variable, environ)
    return secret.current if isinstance(secret, WatchedSecret) else lambda: secret


def _read_secret(
    where: str, file: Path | None, variable: str, environ: Mapping[str, str] | None, advice: str = ""
) -> Secret:
    environ = os.environ if environ is None else environ
    if file is not None:
        return WatchedSecret(file, f"{where}_file")
    if value := environ.get(variable):
        return value
    if named := environ.get(f"{variable}_FILE"):
        return WatchedSecret(Path(named), f"{variable}_FILE")
    raise SettingMissing(f"{where}: the variable {variable} is not set; set it or {variable}_FILE{advice}")


def secret_source(
    settings: Settings, field: str, environ: Mapping[str, str] | None = None
) -> Callable[[], str]:
    """
    Return a function that gives the secret of a field, "" if it is not set; one that `*_FILE` names is read
    again when it changes.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    environ = os.environ if environ is None else environ
    variable = variable_of(field) + "_FILE"
    if file := environ.get(variable):
        return WatchedSecret(Path(file), variable).current
    secret = getattr(settings, field)
    return lambda: secret.get_secret_value() if secret is not None else ""


def database_url_source(settings: Settings) -> Callable[[], str]:
    """As `secret_source`, of our database. Raises: ConfigurationError: `SCORING_DATABASE_URL` is not set."""
    settings.require_database()
    return secret_source(settings, "database_url")
