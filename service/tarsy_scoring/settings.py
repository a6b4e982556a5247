"""
Environment and YAML become frozen settings, or the start is refused with the path and the reason.

Environment first (`SCORING_*`, `OPENAI_*`), then the YAML file that `SCORING_CONFIG` names; inside the
file `defaults` are overridden per chain. Secrets come from the environment or from files (`*_FILE`),
never from the YAML, and never show in a representation of these objects.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.gate_settings import GATE_TYPES, Gate, compile_pattern, not_blank

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4.1"

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SessionStatus = Literal["completed", "failed", "cancelled", "timed_out"]


_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/?#@\[\]]*)(?::\d{1,5})?"
_POSTGRESQL_URL = re.compile(rf"postgres(?:ql)?://(?:[^/?#]*@)?{_HOST}(?:,{_HOST})*(?:[/?]|$)")
_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::\d{1,5})?")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())


# --- the YAML ------------------------------------------------------------------------------------------


class Prices(_Frozen):
    """USD per million tokens."""

    input: float = Field(ge=0, description="Price of input tokens.")
    cached_input: Annotated[float, Field(ge=0)] | None = Field(None, description="Default: the price of `input`.")
    output: float = Field(ge=0, description="Price of output tokens.")


class ProviderSettings(_Frozen):
    """One OpenAI-compatible endpoint and the model that judges there."""

    base_url: str = Field(DEFAULT_BASE_URL, description="Base URL of the API, usually ending in `/v1`.")
    api_key_env: str | None = Field(
        "OPENAI_API_KEY", description="Variable that holds the key; `null` for endpoints without keys."
    )
    api_key_file: Path | None = Field(None, description="File that holds the key, instead of a variable.")
    model: str = Field(DEFAULT_MODEL, min_length=1, description="Model name as the endpoint spells it.")
    context_window_tokens: int = Field(128_000, ge=4_000, description="The model's whole window.")
    max_reply_tokens: int = Field(8_000, ge=256, description="Reserved for the answer.")
    temperature: float | None = Field(None, ge=0, le=2, description="`null`: left out of the call.")
    timeout_s: Positive = Field(300, description="Deadline of one call.")
    max_concurrency: int | None = Field(None, ge=1, description="Calls at once per process; `null`: as many as slots.")
    extra_headers: dict[str, str] = Field(default_factory=dict, description="Sent with every call.")
    proxy: str | None = Field(None, description="HTTP proxy for this provider.")
    ca_file: Path | None = Field(None, description="CA bundle for a private endpoint.")
    requests_per_minute: int | None = Field(None, ge=1, description="Limit over the whole fleet; `null`: none of ours.")
    tokens_per_minute: int | None = Field(None, ge=1, description="Limit over the whole fleet; `null`: none of ours.")
    prices_usd_per_million_tokens: Prices | None = Field(None, description="`{input, cached_input, output}`.")

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        TypeAdapter(AnyHttpUrl).validate_python(value)
        return value.rstrip("/")

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.max_reply_tokens > self.context_window_tokens // 2:
            raise ValueError("max_reply_tokens takes more than half of context_window_tokens")
        return self


class JudgeSettings(_Frozen):
    enabled: bool = Field(True, description="`false`: no judge is asked; metrics and gates alone, and no total.")


class CompositeWeights(_Frozen):
    """Shares of the composite score; only their proportions matter."""

    gate_weight: Weight = Field(0.0, description="Of gates passed / gates.")
    judge_weight: Weight = Field(0.0, description="Of total / 100.")
    interaction_weight: Weight = Field(0.0, description="Of the mean of three interaction rates.")

    @model_validator(mode="after")
    def _weigh_something(self) -> Self:
        if not (self.gate_weight or self.judge_weight or self.interaction_weight):
            raise ValueError("all weights are 0: leave `composite` out where no composite score is wanted")
        return self


class ChainSettings(_Frozen):
    """How the sessions of one chain are scored; `defaults` has the same keys."""

    enabled: bool = Field(True, description="Score finished sessions automatically.")
    criteria: str = Field("investigation-methodology", description="Name of the criteria.")
    providers: tuple[str, ...] = Field((), description="Providers its data may go to, tried in this order.")
    auto_score_statuses: tuple[SessionStatus, ...] = Field(
        ("completed",), description="Session statuses that are scored automatically."
    )
    sample_rate: Share = Field(1.0, description="Share of sessions scored automatically, by a hash of the session id.")
    samples: Annotated[int, Field(ge=1, le=25)] | Literal["adaptive"] = Field(1, description="`n` or `adaptive`.")
    max_reminders: int = Field(2, ge=0, le=10, description="Reminders when an answer holds no total.")
    judge: JudgeSettings = Field(JudgeSettings(), description="`{enabled: false}`: metrics and gates alone.")
    pass_threshold: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="0-100, on `total_score`.")
    daily_budget_usd: Annotated[float, Field(ge=0)] | None = Field(None, description="Per UTC day; `null`: no limit.")
    command_pattern: str | None = Field(None, description="RE2 that finds commands in a shell tool's argument.")
    shell_tools: tuple[Annotated[str, AfterValidator(not_blank)], ...] = Field(
        (), description="`server.tool` whose argument is a command line."
    )
    gates: tuple[Gate, ...] = Field((), description="Pass/fail checks, in order: see [gates](gates.md).")
    # Annotated, so that the page of settings has it as one key: which weights there are matters together.
    composite: Annotated[CompositeWeights, Field()] | None = Field(
        None, description="Weights of the composite score: `{gate_weight, judge_weight, interaction_weight}`."
    )

    @field_validator("command_pattern")
    @classmethod
    def _finds_commands(cls, value: str | None) -> str | None:
        if value is not None and compile_pattern(value).search("") is not None:
            raise ValueError("matches the empty text, so it would find commands where there are none")
        return value


class BudgetSettings(_Frozen):
    daily_usd: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Per UTC day over all chains; `null`: no limit."
    )


class EvidenceSettings(_Frozen):
    max_missing_share: Share = Field(
        0.0, description="Share of the declared evidence that may be missing; beyond it there is no score."
    )


class GateSettings(_Frozen):
    allow_commands: bool = Field(False, description="Let gates run the commands that the configuration names.")
    work_dir: str | None = Field(
        None, description="Where they run and where files are looked for; may hold `{session_id}`."
    )
    timeout_s: Positive = Field(30, description="Time of one command.")
    max_output_bytes: int = Field(1_000_000, ge=1, description="What is kept of the output of one command.")

    @field_validator("work_dir")
    @classmethod
    def _is_directory_name(cls, value: str | None) -> str | None:
        if value is not None and set(not_blank(value).replace("{session_id}", "")) & {"{", "}"}:
            raise ValueError("may hold `{session_id}`, and nothing else in braces")
        return value


class Config(_Frozen):
    """The YAML file."""

    providers: dict[str, ProviderSettings] = Field(default_factory=dict, description="Judges by name.")
    defaults: ChainSettings = Field(ChainSettings(), description="For every chain that does not say otherwise.")
    chains: dict[str, ChainSettings] = Field(default_factory=dict, description="Overrides per chain.")
    budget: BudgetSettings = Field(BudgetSettings(), description="`{daily_usd}`: over all chains.")
    criteria_dirs: tuple[Path, ...] = Field((), description="Folders with criteria files of your own.")
    evidence: EvidenceSettings = Field(EvidenceSettings(), description="`{max_missing_share}`: 0-1.")
    max_event_age_s: Positive | None = Field(
        86_400, description="Older `session-completed` records are `stale`; `null`: none is too old."
    )
    gates: GateSettings = Field(GateSettings(), description="What gates that run commands may do.")


# --- the environment -----------------------------------------------------------------------------------


class Settings(_Frozen):
    """Everything the service was told, from the environment (`SCORING_` + the field in capitals) and the YAML."""

    enabled: bool = Field(True, description="`false`: nothing is scored automatically.")
    database_url: SecretStr | None = Field(None, description="Own PostgreSQL, `postgresql://user:password@host/db`.")
    database_schema: str = Field(
        "public", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$", description="Schema of our tables."
    )
    database_statement_cache: int = Field(
        100, ge=0, description="Prepared statements per connection; 0 behind a PgBouncer that cannot track them."
    )
    kafka_bootstrap_servers: str | None = Field(None, description="`host:port,...`.")
    kafka_group: str = Field("tarsy-scoring", min_length=1, description="Consumer group of the intake.")
    kafka_session_timeout_s: Positive = Field(15, description="How long the broker waits for a dead member.")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How to talk to the brokers."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "PLAIN", description="SASL mechanism."
    )
    kafka_sasl_username: str | None = Field(None, description="SASL user.")
    kafka_sasl_password: SecretStr | None = Field(None, description="SASL password.")
    kafka_ca_file: Path | None = Field(None, description="CA of the brokers.")
    kafka_cert_file: Path | None = Field(None, description="Client certificate for mutual TLS.")
    kafka_key_file: Path | None = Field(None, description="Key of the client certificate.")
    create_topics: bool = Field(False, description="Make missing topics at start.")
    topic_partitions: int = Field(6, ge=1, description="Partitions of topics made at start.")
    topic_replication: int = Field(1, ge=1, description="Replication of topics made at start.")
    topic_session_completed: str = Field("session-completed", description="Topic of finished sessions.")
    topic_rescore_requested: str = Field("rescore-requested", description="Topic of re-score requests.")
    topic_scoring_events: str = Field("scoring-events", description="Topic of scoring events.")
    topic_dead_letters: str = Field("scoring-dead-letters", description="Topic of messages nobody could read.")
    timeline_source: Literal["tarsy-db", "tarsy-api", "files"] | None = Field(
        None, description="Where sessions are read: `tarsy-db`, `tarsy-api` or `files`."
    )
    timeline_database_url: SecretStr | None = Field(None, description="TARSy's PostgreSQL, a read-only role.")
    timeline_api_url: str | None = Field(None, description="TARSy's REST API.")
    timeline_api_token: SecretStr | None = Field(None, description="Bearer token for it.")
    timeline_api_ca_file: Path | None = Field(None, description="CA of TARSy's API.")
    timeline_dir: Path | None = Field(None, description="Folder of session files.")
    timeline_grace_s: float = Field(120, ge=0, description="How long an event may be ahead of its session.")
    judge_model: str | None = Field(None, description=f"Model of the default provider; default `{DEFAULT_MODEL}`.")
    slots: int = Field(16, ge=1, le=10_000, description="Scores judged at once in one worker.")
    lease_s: float = Field(60, ge=1, description="How long a claimed score survives its worker's silence.")
    attempt_timeout_s: Positive = Field(600, description="Time of one attempt.")
    max_attempts: int = Field(5, ge=1, description="Attempts that may end in an error or with a lost worker.")
    deadline_s: Positive = Field(3600, description="Attempts and own backoff of one score, added up.")
    drain_timeout_s: float = Field(180, ge=0, description="Time for running attempts after SIGTERM.")
    max_pending: int = Field(100_000, ge=1, description="Due scores over which intake pauses.")
    api_host: str = Field("127.0.0.1", description="Where the API listens.")
    api_port: int = Field(8080, ge=0, le=65_535, description="Port of the API.")
    metrics_port: int = Field(
        9090, ge=0, le=65_535, description="Port of the worker's `/metrics`, `/healthz`, `/readyz`; 0: any."
    )
    trusted_proxies: str = Field("", description="Comma-separated CIDRs whose forwarded headers count.")
    api_rate_per_minute: int = Field(60, ge=1, description="Changing requests per caller.")
    api_tokens_file: Path | None = Field(None, description="Bearer tokens of the API.")
    api_open: bool = Field(False, description="Let the API listen beyond loopback without access control.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_format: Literal["json", "console"] | None = Field(
        None, description="`json`, or `console`; default: `console` on a terminal, else `json`."
    )
    config: Config = Config()
    unknown_variables: tuple[str, ...] = Field((), description="`SCORING_*` variables that mean nothing to us.")

    @field_validator("database_url", "timeline_database_url")
    @classmethod
    def _is_postgresql(cls, value: SecretStr | None) -> SecretStr | None:
        """A URL that cannot be meant would look like a database that is away for ever."""
        if value is not None and not _POSTGRESQL_URL.match(value.get_secret_value()):
            raise ValueError("expected postgresql://user:password@host:5432/database")
        return value

    @field_validator("kafka_bootstrap_servers")
    @classmethod
    def _are_brokers(cls, value: str | None) -> str | None:
        if value is not None and not all(_BROKER.fullmatch(part.strip()) for part in value.split(",")):
            raise ValueError("expected host:port, several separated by commas")
        return value

    @model_validator(mode="after")
    def _sasl_is_whole(self) -> Self:
        if self.kafka_security_protocol.startswith("SASL") and not (
            self.kafka_sasl_username and self.kafka_sasl_password
        ):
            raise ValueError("SASL needs SCORING_KAFKA_SASL_USERNAME and SCORING_KAFKA_SASL_PASSWORD")
        return self

    def chain(self, chain_id: str | None) -> ChainSettings:
        """The settings of a chain; those of `defaults` for a chain nobody configured, or none."""
        return self.config.chains.get(chain_id or "", self.config.defaults)

    def require_database(self) -> str:
        """Raises: ConfigurationError: `SCORING_DATABASE_URL` is not set."""
        if self.database_url is None:
            raise ConfigurationError(
                "SCORING_DATABASE_URL is not set: give the PostgreSQL that holds the scores, "
                "postgresql://user:password@host:5432/database"
            )
        return self.database_url.get_secret_value()

    def require_kafka(self) -> str:
        """Raises: ConfigurationError: `SCORING_KAFKA_BOOTSTRAP_SERVERS` is not set."""
        if self.kafka_bootstrap_servers is None:
            raise ConfigurationError("SCORING_KAFKA_BOOTSTRAP_SERVERS is not set: give the brokers as host:port,...")
        return self.kafka_bootstrap_servers

    def api_key(self, provider: str, environ: Mapping[str, str] | None = None) -> str | None:
        """
        The key of a provider; None where it needs none.

        Raises:
            ConfigurationError: Its variable is not set, or its file cannot be read.
        """
        environ = os.environ if environ is None else environ
        wanted = self.config.providers[provider]
        if wanted.api_key_file is not None:
            return _read_secret(wanted.api_key_file, f"providers.{provider}.api_key_file")
        if wanted.api_key_env is None:
            return None
        if key := environ.get(wanted.api_key_env):
            return key
        if file := environ.get(wanted.api_key_env + "_FILE"):
            return _read_secret(Path(file), wanted.api_key_env + "_FILE")
        raise ConfigurationError(
            f"providers.{provider}: the variable {wanted.api_key_env} is not set; "
            f"set it (or {wanted.api_key_env}_FILE), or say `api_key_env: null` for an endpoint without keys"
        )


SECRETS = tuple(n for n, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation))
_NOT_FROM_ENVIRONMENT = {"config", "unknown_variables"}
# A second spelling that the interface's shorthand allows.
_ALIASES = {
    "topic_partitions": "SCORING_KAFKA_TOPIC_PARTITIONS",
    "topic_replication": "SCORING_KAFKA_TOPIC_REPLICATION",
}


def variable_of(field: str) -> str:
    """The environment variable of a field of `Settings`."""
    return "SCORING_" + field.upper()


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """
    Read environment and YAML.

    An empty variable counts as not set, as compose files and charts leave them.

    Raises:
        ConfigurationError: Naming the variable or the path in the file, and the reason.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    known = {"SCORING_CONFIG"}
    for field in Settings.model_fields:
        if field in _NOT_FROM_ENVIRONMENT:
            continue
        variable = variable_of(field)
        known |= {variable, _ALIASES.get(field, variable)}
        if value := environ.get(variable) or environ.get(_ALIASES.get(field, "")):
            values[field] = value
        if field in SECRETS:
            known.add(variable + "_FILE")
            if file := environ.get(variable + "_FILE"):
                if value:
                    raise ConfigurationError(f"{variable} and {variable}_FILE are both set: keep one")
                values[field] = _read_secret(Path(file), variable + "_FILE")
    values["unknown_variables"] = tuple(sorted(v for v in environ if v.startswith("SCORING_") and v not in known))
    path = environ.get("SCORING_CONFIG")
    values["config"] = _load_config(Path(path) if path else None, environ)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, variable_of)) from None


def _load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """The YAML with chains completed from `defaults` and, where it names no provider, the default one."""
    raw = _read_yaml(path, environ) if path else {}
    where = str(path) if path else "configuration"
    defaults, chains = raw.get("defaults") or {}, raw.get("chains") or {}
    if isinstance(defaults, dict) and isinstance(chains, dict):
        raw["chains"] = {k: {**defaults, **(v or {})} if isinstance(v or {}, dict) else v for k, v in chains.items()}
    if not raw.get("providers"):
        raw["providers"] = {
            "default": {
                "base_url": environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL,
                "model": environ.get("SCORING_JUDGE_MODEL") or DEFAULT_MODEL,
            }
        }
    for section in [k for k, v in raw.items() if v is None]:
        del raw[section]  # `chains:` with nothing under it
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {_explain(error)}") from None
    config = _with_default_providers(config)
    named = {"defaults": config.defaults} | {f"chains.{k}": v for k, v in config.chains.items()}
    for name, chain in named.items():
        for provider in chain.providers:
            if provider not in config.providers:
                raise ConfigurationError(
                    f"{where}: {name}.providers: no provider is called {provider!r}"
                    f"{_nearest(provider, config.providers)}"
                )
    if path:
        dirs = tuple(d if d.is_absolute() else path.parent / d for d in config.criteria_dirs)
        config = config.model_copy(update={"criteria_dirs": dirs})
    return config


def _with_default_providers(config: Config) -> Config:
    """Where a chain lists no providers, all of them in the order of the file."""
    everyone = tuple(config.providers)

    def complete(chain: ChainSettings) -> ChainSettings:
        return chain if chain.providers else chain.model_copy(update={"providers": everyone})

    return config.model_copy(
        update={
            "defaults": complete(config.defaults),
            "chains": {name: complete(chain) for name, chain in config.chains.items()},
        }
    )


def _read_yaml(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"SCORING_CONFIG: cannot read {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: expected a mapping at the top, found {type(loaded).__name__}")
    filled = _interpolate(loaded, environ, str(path), "")
    assert isinstance(filled, dict)
    return filled


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def _interpolate(value: Any, environ: Mapping[str, str], file: str, path: str) -> Any:
    """`${VAR}` and `${VAR:-default}` in every string; a variable that is not set and has no default is an error."""
    if isinstance(value, dict):
        return {k: _interpolate(v, environ, file, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolate(v, environ, file, f"{path}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        found = environ.get(match["name"]) or match["default"]
        if found is None:
            raise ConfigurationError(f"{file}: {path}: the variable {match['name']} is not set and has no default")
        return found

    return _VARIABLE.sub(fill, value)


def _read_secret(path: Path, what: str) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{what}: cannot read {path}: {reason}") from None
    if not secret:
        raise ConfigurationError(f"{what}: {path} is empty")
    return secret


def _explain(error: ValidationError, spell: Any = None) -> str:
    """One line per fault: where, what is wrong, and the nearest name that exists. Never the value."""
    lines = []
    for fault in error.errors(include_input=False, include_url=False):
        parts = [str(p) for p in fault["loc"]]
        if spell and parts:
            parts[0] = spell(parts[0])
        at = _gate_type_at(parts)
        where = ".".join(part for place, part in enumerate(parts) if place != at)
        if fault["type"] == "extra_forbidden":
            lines.append(f"{where}: no such key{_nearest(parts[-1], _keys_beside(parts))}")
        elif fault["type"] == "union_tag_invalid":
            lines.append(f"{where}.type: no such gate{_nearest(fault['ctx']['tag'], GATE_TYPES)}")
        elif fault["type"] == "union_tag_not_found":
            lines.append(f"{where}.type: Field required{_nearest('', GATE_TYPES)}")
        else:
            reason = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {reason}" if where else reason)
    return "; ".join(lines)


def _gate_type_at(parts: list[str]) -> int | None:
    """Where the path of a fault inside of a gate holds the gate's type, which does not stand in the YAML like that."""
    chain = {"defaults": 1, "chains": 2}.get(parts[0] if parts else "")
    return chain + 2 if chain and len(parts) > chain + 2 and parts[chain] == "gates" else None


def _keys_beside(parts: list[str]) -> list[str]:
    """The keys that would have been right at this place of the YAML."""
    if (at := _gate_type_at(parts)) is not None:
        return list(GATE_TYPES[parts[at]].model_fields)
    if len(parts) == 1:
        return list(Config.model_fields)
    models: dict[str, type[BaseModel]] = {
        "providers": ProviderSettings,
        "defaults": ChainSettings,
        "chains": ChainSettings,
        "budget": BudgetSettings,
        "evidence": EvidenceSettings,
        "gates": GateSettings,
    }
    inner: dict[str, type[BaseModel]] = {
        "judge": JudgeSettings,
        "composite": CompositeWeights,
        "prices_usd_per_million_tokens": Prices,
    }
    is_named = parts[0] in ("providers", "chains")
    holder = parts[-2] if len(parts) > 2 + is_named else ""
    return list(inner.get(holder, models.get(parts[0], Config)).model_fields)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (known: {', '.join(sorted(known))})"
