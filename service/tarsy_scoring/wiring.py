"""Builds the parts that every process with a database uses, and checks settings before a start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

import structlog

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.hosts import is_loopback
from tarsy_scoring.config.load import nearest_variable
from tarsy_scoring.config.secret_files import require_unreadable
from tarsy_scoring.config.secrets import database_url_source, read_api_key
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, errors_of
from tarsy_scoring.gates import sandbox
from tarsy_scoring.judge.ask.prices import Prices
from tarsy_scoring.judge.criteria import CriteriaRegistry, load_criteria
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.limits.budgets import require_affordable
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres.analytic_reads import AnalyticReads
from tarsy_scoring.postgres.database import RETRY_MAX_S, Database
from tarsy_scoring.postgres.failures import REFUSALS, refused
from tarsy_scoring.postgres.revisions import check_migrated
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.queue.store import Store
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.telemetry.tracing import wants_traces
from tarsy_scoring.timeline.sources import open_timeline_source

log = structlog.get_logger()

Role = Literal["intake", "judging", "relay"]
ROLES: tuple[Role, ...] = ("intake", "judging", "relay")
GATES_ADVICE = "set gates.work_dir, and gates.allow_commands for those that run commands"


@dataclass(frozen=True, slots=True)
class Parts:
    """
    The parts that every command with a database uses.

    Args:
        analytics: Like `reader`, for reads over many scores.
    """

    settings: Settings
    registry: CriteriaRegistry
    database: Database
    inbox: Inbox
    leases: Leases
    store: Store
    reader: Reader
    analytics: Reader
    limits: Limits
    metrics: Metrics


@asynccontextmanager
async def open_parts(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[Parts]:
    """
    Build the database pool and everything on top of it. Connects to nothing yet (see `require_migrated`).

    Raises:
        ConfigurationError: No database is configured, or the criteria cannot be read.
    """
    registry = load_criteria(settings.config.criteria_dirs)
    url = database_url_source(settings)
    database = Database(
        url,
        settings.database_schema,
        pool_size=settings.database_connections,
        statement_cache=settings.database_statement_cache,
    )
    many = AnalyticReads(url, settings.database_schema, statement_cache=settings.database_statement_cache)
    async with closing(many, database):
        await database.open()
        await many.open()
        inbox = Inbox(database, policy_of(settings, registry))
        limits = Limits(database, settings, least_usd=_replies_usd(settings))
        reader = Reader(database, inbox.policy.current_hash, limits.refreshed_standings)
        analytics = Reader(many, inbox.policy.current_hash, limits.refreshed_standings)
        leases, store = Leases(database, inbox), Store(database, inbox)
        metrics = metrics or Metrics(settings.config.chains)
        yield Parts(settings, registry, database, inbox, leases, store, reader, analytics, limits, metrics)


def policy_of(settings: Settings, registry: CriteriaRegistry) -> Policy:
    config = settings.config

    def hashes(chain: ChainSettings) -> dict[str, str]:
        return {c.name: registry.of_chain(chain, c.name).criteria_hash for c in registry}

    own = {
        n: hashes(c) for n, c in config.chains.items() if c.criteria_notes != config.defaults.criteria_notes
    }
    return Policy(settings, hashes(config.defaults), own)


def _replies_usd(settings: Settings) -> dict[str, float]:
    """Cost of a full reply in USD by provider: the least that a call reserves. Empty if no budget is set."""
    config = settings.config
    if not any(
        (config.budget.daily_usd, *(c.daily_budget_usd for c in (config.defaults, *config.chains.values())))
    ):
        return {}
    return {
        name: Prices(provider).cost_usd(0, 0, provider.max_reply_tokens) or 0.0
        for name, provider in settings.config.providers.items()
    }


@asynccontextmanager
async def open_migrated_parts(settings: Settings) -> AsyncIterator[Parts]:
    """
    `open_parts` for a command: connected, and with every table that this version needs.

    Raises:
        ConfigurationError: See `open_parts`.
        DatabaseAway, StartRefused: See `require_migrated`.
    """
    async with open_parts(settings) as parts:
        await require_migrated(parts.database, wait=False)
        yield parts


async def require_migrated(database: Database, *, wait: bool) -> None:
    """
    Check that the database is migrated.

    Args:
        wait: Wait for a database that is away; False: raise.

    Raises:
        StartRefused: The database is not migrated, or refuses us.
        DatabaseAway: The database cannot be reached, and `wait` is False.
    """
    patience = database.patience() if wait else contextlib.nullcontext()
    while True:
        try:
            with patience:
                await database.once(lambda c: check_migrated(c, database.schema))
                return
        except REFUSALS as error:
            raise refused(database.place, error) from error
        await asyncio.sleep(RETRY_MAX_S)


def check_settings(settings: Settings, roles: tuple[Role, ...], environ: Mapping[str, str]) -> None:
    """
    Check that these roles have the settings they need, before anything is started; warns as
    `warn_of_settings`.

    Raises:
        ConfigurationError: Naming each setting and the remedy, one in a line.
    """
    if errors := setting_errors(settings, roles, environ):
        raise ConfigurationError("\n".join(map(str, errors)))
    warn_of_settings(settings, roles)


def setting_errors(
    settings: Settings, roles: tuple[Role, ...], environ: Mapping[str, str]
) -> list[ConfigurationError]:
    """
    What keeps these roles from their start: settings that are not set (`SettingMissing`), or wrong.

    Logs variables without a meaning, which may be those that are missing.
    """
    for variable in settings.unknown_variables:
        near = nearest_variable(variable)
        advice = "no setting has this name" + (f"; did you mean {near}?" if near else "")
        log.warning("settings.unknown_variable", variable=variable, advice=advice)
    checks: list[Callable[[], object]] = [settings.require_database]
    if "intake" in roles or "relay" in roles:
        checks.append(settings.require_kafka)
    if settings.kafka_bootstrap_servers:
        checks.append(partial(check_login, settings))
    errors = errors_of(*checks)
    if "judging" in roles:
        errors += _errors_of_judging(settings, environ)
    return errors + _errors_of_criteria(settings)


def warn_of_settings(settings: Settings, roles: tuple[Role, ...]) -> None:
    """Log settings that are allowed but probably a mistake."""
    config = settings.config
    if "judging" in roles:
        for name, provider in config.providers.items():
            url = urlsplit(provider.base_url)
            if url.scheme.lower() == "http" and not is_loopback(url.hostname or ""):
                # Sessions and keys can be read on the way.
                log.warning("settings.judge_in_clear", provider=name, advice="use https")
    for where, chain in config.named_chains.items():
        if names := chain.gates_that_cannot_pass(config.gates):
            log.warning("settings.gates_cannot_pass", where=where, gates=names, advice=GATES_ADVICE)


def _errors_of_judging(settings: Settings, environ: Mapping[str, str]) -> list[ConfigurationError]:
    providers = settings.config.providers
    full_window_usd = {
        name: Prices(provider).cost_usd(provider.context_window_tokens, 0, 2 * provider.max_reply_tokens)
        for name, provider in providers.items()
    }
    return errors_of(
        partial(open_timeline_source, settings),
        *(partial(read_api_key, settings, name, environ) for name in providers),
        partial(require_unreadable, settings, environ, sandbox.SYSTEM),
        partial(wants_traces, environ),
        partial(require_affordable, settings, full_window_usd),
        settings.require_write_back,
    )


def _errors_of_criteria(settings: Settings) -> list[ConfigurationError]:
    try:
        registry = load_criteria(settings.config.criteria_dirs)
    except ConfigurationError as error:
        return [error]
    chains = settings.config.named_chains.items()
    unknown = [(where, chain.criteria) for where, chain in chains if chain.criteria not in registry]
    return [
        ConfigurationError(f"{where}.criteria: no criteria are called {name!r}{registry.hint(name)}")
        for where, name in unknown
    ]
