"""`tokens`: makes bearer tokens for the API."""

import hashlib
import json
import re
import secrets
from datetime import date, timedelta
from pathlib import Path

import click

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.tokens import is_name, parse_tokens, utc_today


@click.group(no_args_is_help=True)
def tokens() -> None:
    """Make bearer tokens for the API."""


def _expiry(text: str) -> date:
    """The day after so many days; for `type` of an option. Raises: click.BadParameter."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}d", text):
        raise click.BadParameter(f"{text!r} is not a number of days: write 90d")
    return utc_today() + timedelta(int(text[:-1]))


@tokens.command("create")
@click.argument("name")
@click.option("--scope", type=click.Choice(["read", "score"]), default="read", show_default=True)
@click.option("--expires", type=_expiry, default="90d", show_default=True, metavar="DAYS")
@click.option("--write", is_flag=True, help="Append the line to the file in SCORING_API_TOKENS_FILE.")
def create(name: str, scope: str, expires: date, write: bool) -> None:
    """
    Make a token: print it, once, and below it its line for the tokens file.

    The line holds no token, only its SHA-256. The token is stored nowhere: give it to the caller now.
    """
    if not is_name(name):
        raise click.BadParameter("expected 1-255 visible characters", param_hint="NAME")
    token = secrets.token_hex(32)
    sha256 = hashlib.sha256(token.encode()).hexdigest()
    quoted = json.dumps(name, ensure_ascii=False)
    line = f'- {{name: {quoted}, scope: {scope}, expires: {expires}, sha256: "{sha256}"}}'
    if write:
        path = load_settings().api_tokens_file
        if path is None:
            raise ConfigurationError("SCORING_API_TOKENS_FILE is not set, so there is no file to write to")
        _append(path, line)
    click.echo(f"{token}\n{line}")


def _append(path: Path, line: str) -> None:
    """Add a line to a tokens file. Raises: ConfigurationError: It cannot be written, or takes no line."""
    try:
        before = path.read_bytes() if path.exists() else b""
        added = (b"" if before.endswith(b"\n") or not before else b"\n") + f"{line}\n".encode()
        parse_tokens(before + added, str(path))
        with path.open("ab") as file:
            file.write(added)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
