"""
`completion`: prints the script with which a shell completes this command, and the names that it completes.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from tarsy_scoring.errors import ConfigurationError

if TYPE_CHECKING:
    from tarsy_scoring.config.settings import Settings

PROGRAM, VARIABLE = "tarsy-scoring", "_TARSY_SCORING_COMPLETE"  # click looks for this variable at each start

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """
    Print the script that completes commands in bash, zsh or fish.

    The script completes commands, options, and the names of chains, providers and criteria in the settings.

    \b
    in ~/.bashrc: eval "$(tarsy-scoring completion bash)"
    in ~/.zshrc:  eval "$(tarsy-scoring completion zsh)"
    for fish:     tarsy-scoring completion fish > ~/.config/fish/completions/tarsy-scoring.fish
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(click.Group(), {}, PROGRAM, VARIABLE).source())


def _names(names: Callable[["Settings"], Iterable[str]]) -> Complete:
    """A completion by names in the settings; by none while the settings cannot be used."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        from tarsy_scoring.config.load import load_settings

        try:
            return sorted(name for name in names(load_settings()) if name.startswith(begun))
        except ConfigurationError:
            return []

    return complete


def _criteria(settings: "Settings") -> Iterable[str]:
    from tarsy_scoring.judge.criteria import load_criteria

    return (criteria.name for criteria in load_criteria(settings.config.criteria_dirs))


chain_names = _names(lambda settings: settings.config.chains)
provider_names = _names(lambda settings: settings.config.providers)
criteria_names = _names(_criteria)
