"""`tokens`: shows the API's bearer tokens."""

import click

from tarsy_scoring.commands.shared import json_option, plain, print_json, settings_of_environment
from tarsy_scoring.errors import ConfigurationError


@click.group(no_args_is_help=True)
def tokens() -> None:
    """Bearer tokens for the API."""


@tokens.command("list")
@json_option
def list_tokens(as_json: bool) -> None:
    """
    List the tokens of the API by name, with scope and expiry.

    Reads SCORING_API_TOKENS_FILE. The state is `valid`, `expires soon` (within 14 days) or `expired`. Digests
    are not shown.
    """
    from tarsy_scoring.web.edge.tokens import TokensFile, utc_today

    path = settings_of_environment().api_tokens_file
    if path is None:
        raise ConfigurationError(
            "SCORING_API_TOKENS_FILE is not set: give the file with the tokens of the API"
        )
    today = utc_today()
    found = [
        {"name": t.name, "scope": t.scope, "expires": t.expires, "state": t.state(today)}
        for t in sorted(TokensFile(path).current(), key=lambda token: token.name)
    ]
    if as_json:
        print_json({"tokens": found})
        return
    for token in found:
        until = f"{token['state']}, {token['expires']}" if token["expires"] else "does not expire"
        click.echo(f"{plain(str(token['name']))}  {token['scope']}  {until}")
    if not found:
        click.echo("there are no tokens: every request with a token is refused")
