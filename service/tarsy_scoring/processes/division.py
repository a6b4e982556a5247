"""Divides what one worker may use among its processes: slots, calls of each provider, connections."""

from collections.abc import Iterator

from tarsy_scoring.config.settings import LEAST_CONNECTIONS, Settings, variable_of
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.processes.cores import count_usable_cores


def count_processes(settings: Settings) -> int:
    """
    How many processes judge; `auto` is one for each usable core, as far as there is enough to divide.

    Raises:
        ConfigurationError: A process would get less than it needs.
    """
    if settings.processes == "auto":
        return min(count_usable_cores(), *(total // least for _, total, least in _divisible(settings)))
    for name, total, least in _divisible(settings):
        if settings.processes * least > total:
            each = "1" if least == 1 else f"at least {least}"
            raise ConfigurationError(
                f"{variable_of('processes')} is {settings.processes}, and {name} is {total}: each process needs {each} "
                f"of them, so raise {name} to {settings.processes * least}, or start at most {total // least} "
                "processes (--processes)"
            )
    return settings.processes


def divide(settings: Settings, processes: int, number: int) -> Settings:
    """
    The settings of one process; those of all processes add up to `settings`.

    Args:
        number: From 1. The first processes get the remainders.
    """

    def share(total: int) -> int:
        return total // processes + (number <= total % processes)

    providers = {
        name: provider.model_copy(update={"max_concurrency": share(provider.max_concurrency)})
        if provider.max_concurrency is not None
        else provider
        for name, provider in settings.config.providers.items()
    }
    return settings.model_copy(
        update={
            "slots": share(settings.slots),
            "database_connections": share(settings.database_connections),
            "timeline_database_connections": share(settings.timeline_database_connections),
            "config": settings.config.model_copy(update={"providers": providers}),
        }
    )


def _divisible(settings: Settings) -> Iterator[tuple[str, int, int]]:
    """Settings that are divided: name, value, and the least that each process needs."""
    yield variable_of("slots"), settings.slots, 1
    yield variable_of("database_connections"), settings.database_connections, LEAST_CONNECTIONS
    if settings.timeline_source == "tarsy-db":
        yield variable_of("timeline_database_connections"), settings.timeline_database_connections, 1
    for name, provider in settings.config.providers.items():
        if provider.max_concurrency is not None:
            yield f"providers.{name}.max_concurrency", provider.max_concurrency, 1
