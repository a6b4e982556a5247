"""Files that hold secrets, so gate commands must not read them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tarsy_scoring.config.notifications import secret_variables
from tarsy_scoring.config.settings import SECRETS, Settings, variable_of
from tarsy_scoring.errors import ConfigurationError

# Fields that name a file with a secret; others name certificates and public keys.
FIELDS = ("kafka_key_file", "kafka_oauth_token_file", "api_tokens_file")
_URL_OPTIONS = {"sslkey", "passfile"}


def secret_files(settings: Settings, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Each configured file that holds a secret, after the setting that names it."""
    for name, provider in settings.config.providers.items():
        if provider.api_key_file is not None:
            yield f"providers.{name}.api_key_file", provider.api_key_file
    variables = (f"{variable}_FILE" for variable in _secret_variables(settings))
    yield from ((v, Path(environ[v])) for v in dict.fromkeys(variables) if environ.get(v))
    for field in FIELDS:
        if (path := getattr(settings, field)) is not None:
            yield variable_of(field), path
    yield from _files_in_urls(settings)


def _secret_variables(settings: Settings) -> Iterator[str]:
    yield from map(variable_of, SECRETS)
    for provider in settings.config.providers.values():
        if provider.api_key_file is None and provider.api_key_env is not None:
            yield provider.api_key_env
    for target in settings.config.notifications.values():
        yield from secret_variables(target)


def _files_in_urls(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Keys and passwords in files that database URLs name in their query."""
    for field in SECRETS:
        if field.endswith("_url") and (url := getattr(settings, field)) is not None:
            options = dict(parse_qsl(urlsplit(url.get_secret_value()).query))
            for option in options.keys() & _URL_OPTIONS:
                yield f"{option} of {variable_of(field)}", Path(options[option])


def require_unreadable(
    settings: Settings, environ: Mapping[str, str], readable: Iterable[str | Path]
) -> None:
    """
    Check that commands of gates can read none of the files with secrets.

    Args:
        readable: Folders and files that every command may read, beside the work directory.

    Raises:
        ConfigurationError: Naming the file and the folder that holds it.
    """
    gates = settings.config.gates
    if not gates.allow_commands:
        return
    folders = [*readable]
    if gates.work_dir is not None:
        before, placeholder, _ = gates.work_dir.partition("{session_id}")
        folders.append((os.path.dirname(before) or ".") if placeholder else before)
    for setting, path in secret_files(settings, environ):
        if gates.sandbox == "container":
            raise ConfigurationError(
                f"{setting}: gates.sandbox is `container`, so commands of gates could read {path}; "
                "give this secret in a variable, or set gates.sandbox: landlock"
            )
        for folder in folders:
            # Where the file is, and where it leads: a mounted Secret consists of links.
            if any(
                p.is_relative_to(os.path.realpath(folder))
                for p in (Path(os.path.realpath(path)), path.absolute())
            ):
                raise ConfigurationError(
                    f"{setting}: commands of gates may read {path}, which is below {folder}; move it elsewhere"
                )
