"""
The YAML file as records: judges, chains, gates, budgets and masking. It holds no secrets.

The texts below the fields are the source of `docs/configuration.md`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tarsy_scoring.config.gates import AnyGate, CommandGate, FileGate, Gate
from tarsy_scoring.config.notifications import TargetName, TargetSettings
from tarsy_scoring.config.values import (
    FindingPattern,
    Frozen,
    HttpUrl,
    NotBlank,
    Notes,
    Positive,
    SecondOpinions,
    SecretKind,
    Share,
    Statuses,
    Switch,
    Total,
    Usd,
    Weight,
    WorkDir,
)

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4.1-mini"


class TokenPrices(Frozen):
    """USD per million tokens."""

    input: float = Field(ge=0)
    """Price of input tokens."""
    cached_input: Usd | None = None
    """Default: the price of `input`."""
    output: float = Field(ge=0)
    """Price of output tokens."""


class ProviderSettings(Frozen):
    """An OpenAI-compatible endpoint and the judge model there."""

    base_url: HttpUrl = DEFAULT_BASE_URL
    """Base URL of the API, usually ending in `/v1`."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Variable with the key; `null`: without key."""
    api_key_file: Path | None = None
    """File that holds the key, instead of a variable."""
    model: str = Field(DEFAULT_MODEL, min_length=1)
    """Model name at the endpoint."""
    context_window_tokens: int = Field(128_000, ge=4_000)
    """The model's window: prompt and reply."""
    max_reply_tokens: int = Field(8_000, ge=256)
    """Tokens reserved for the reply; more than 1 MiB and 16 bytes for each are not read."""
    temperature: float | None = Field(None, ge=0, le=2)
    """`null`: not sent."""
    reply_format: Literal["json_schema", "json_object", "text"] = "json_schema"
    """How JSON is asked for at first; what the endpoint does not take is left out."""
    timeout_s: Positive = 300
    """Deadline of one call."""
    max_concurrency: int | None = Field(None, ge=1)
    """Calls at once per worker; `null`: as many as slots."""
    extra_headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every call."""
    proxy: str | None = None
    """HTTP proxy for this provider."""
    ca_file: Path | None = None
    """CA bundle for a private endpoint."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Limit over all workers; `null`: none."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Limit over all workers; `null`: none."""
    prices_usd_per_million_tokens: TokenPrices | None = None
    """`{input, cached_input, output}`."""

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.max_reply_tokens > self.context_window_tokens // 2:
            raise ValueError("max_reply_tokens takes more than half of context_window_tokens")
        return self


class MemorySettings(Frozen):
    """The model that embeds TARSy's memories, as TARSy itself uses it."""

    embedding_provider: str
    """Provider whose endpoint serves `/embeddings`."""
    model: NotBlank
    """The model's name there."""
    dimensions: int = Field(768, ge=1, le=16_000)
    """Length of a vector."""


class CompositeWeights(Frozen):
    """Weights of the composite score; only their proportions count."""

    gate_weight: Weight = 0.0
    """Weight of the share of passed gates."""
    judge_weight: Weight = 0.0
    """Weight of the total, divided by 100."""
    interaction_weight: Weight = 0.0
    """Weight of the mean interaction rate."""

    @model_validator(mode="after")
    def _weigh_something(self) -> Self:
        if not (self.gate_weight or self.judge_weight or self.interaction_weight):
            raise ValueError("all weights are 0: leave `composite` out where no composite score is wanted")
        return self


class ChainSettings(Frozen):
    """How a chain's sessions are scored; `defaults` has the same keys."""

    enabled: bool = True
    """Score finished sessions automatically."""
    criteria: str = "investigation"
    """Name of the criteria."""
    criteria_notes: Notes | None = None
    """A paragraph about the domain, which the judge reads with the criteria."""
    providers: tuple[str, ...] = ()
    """Providers that may receive the data, tried in this order."""
    auto_score_statuses: Statuses = ("completed",)
    """Session statuses that are scored automatically."""
    sample_rate: Share = 1.0
    """Share of sessions scored automatically, by a hash of the session id."""
    samples: int = Field(1, ge=1, le=25)
    """Judgements per score."""
    second_opinion: SecondOpinions = None
    """`edges`: also ask the chain's next provider where a total is near a band's edge; `null` or
    `off`: never."""
    max_reminders: int = Field(2, ge=0, le=10)
    """Reminders to a judge whose answer holds no total, or no outcome."""
    judge: Switch = True
    """`false`, or `{enabled: false}`: metrics and gates without a judge, and no total."""
    pass_threshold: Total | None = None
    """Least `total_score` that passes, 0-100. A chain's counts before the criteria's, and
    that before the one in `defaults`."""
    daily_budget_usd: Usd | None = None
    """Per UTC day; `null`: no limit."""
    command_pattern: FindingPattern | None = None
    """RE2 that finds commands in a shell tool's argument."""
    shell_tools: tuple[NotBlank, ...] = ()
    """Tools (`server.tool`) whose argument is a command line."""
    gates: tuple[Gate, ...] = ()
    """Pass/fail checks, in order: see [gates](gates.md)."""
    references: dict[Literal["from_reviews"], Literal["none", "inaccurate", "all"]] = Field(
        default_factory=dict
    )
    """`{from_reviews}`: judge again against what reviewers wrote in TARSy: where they rated `inaccurate`, `all`,
    or `none` (the default)."""
    # Annotated, so that the generated page shows one key instead of one for each weight.
    composite: Annotated[CompositeWeights, Field()] | None = None
    """Weights of the composite score: `{gate_weight, judge_weight, interaction_weight}`."""
    memory: Annotated[MemorySettings, Field()] | None = None
    """`{embedding_provider, model, dimensions}`: lessons of a session are written into
    [TARSy's memory](bridge.md#memory); `null`: they are not."""

    @property
    def named_providers(self) -> list[tuple[str, str]]:
        """Each provider that the chain names, with the key that names it."""
        memory = [("memory.embedding_provider", self.memory.embedding_provider)] if self.memory else []
        return [("providers", name) for name in self.providers] + memory

    @property
    def may_judge_again(self) -> bool:
        """Whether another provider may judge as well, depending on the total."""
        return self.second_opinion is not None and len(self.providers) > 1

    def next_provider(self, answered: str) -> str | None:
        """
        The provider after the one that answered; the first follows the last. None without another.
        """
        place = self.providers.index(answered) + 1 if answered in self.providers else 0
        return next((p for p in (*self.providers[place:], *self.providers[:place]) if p != answered), None)

    def gates_that_cannot_pass(self, settings: "GateSettings") -> list[str]:
        """Titles of gates that need a work directory, or to run commands, which the settings do not allow."""
        has_work_dir = settings.work_dir is not None

        def can_pass(gate: AnyGate) -> bool:
            if isinstance(gate, CommandGate):
                return has_work_dir and settings.allow_commands
            return has_work_dir or not isinstance(gate, FileGate)

        return [gate.title for gate in self.gates if not can_pass(gate)]


class BudgetSettings(Frozen):
    daily_usd: Usd | None = None
    """Per UTC day over all chains; `null`: no limit."""


class EvidenceSettings(Frozen):
    max_missing_share: Share = 0.0
    """Share of declared evidence that may be missing; above it a session is not scored."""
    min_shown_share: Share = 0.3
    """Share of a session's characters; a judge that saw less flags the score `mostly_unseen`."""


class GateSettings(Frozen):
    allow_commands: bool = False
    """Allow gates to run the commands in this configuration."""
    sandbox: Literal["landlock", "container"] = "landlock"
    """What keeps commands from secrets: `landlock` restricts the files that they can read; `container` states
    that their container holds no secret in a file."""
    work_dir: WorkDir | None = None
    """Directory in which commands run and files are read; may hold `{session_id}`."""
    timeout_s: Positive = 30
    """Time limit of a command."""
    max_output_bytes: int = Field(1_000_000, ge=1)
    """Bytes kept from a command's output."""


class Config(Frozen):
    """The contents of the YAML file; each section that the file omits has the defaults."""

    providers: dict[str, ProviderSettings] = Field(default_factory=dict)
    """Judges by name."""
    defaults: ChainSettings = ChainSettings()
    """For every chain, unless it sets its own value."""
    chains: dict[str, ChainSettings] = Field(default_factory=dict)
    """Overrides per chain."""
    budget: BudgetSettings = BudgetSettings()
    """`{daily_usd}`: over all chains."""
    notifications: dict[TargetName, TargetSettings] = Field(default_factory=dict)
    """Where notifications and scores are sent, by name."""
    criteria_dirs: tuple[Path, ...] = ()
    """Folders with your own criteria files."""
    evidence: EvidenceSettings = EvidenceSettings()
    """`{max_missing_share, min_shown_share}`: 0-1."""
    max_event_age_s: Positive | None = 86_400
    """Age above which a `session-completed` record is `stale`; `null`: no limit."""
    masking_patterns: dict[SecretKind, FindingPattern] = Field(default_factory=dict)
    """RE2 patterns of your own secrets by kind: `badge` becomes `[REDACTED:badge#1]`. The secret is the group
    of a pattern, or all of it. A change makes a new `judge_fingerprint`."""
    references: dict[Literal["from_events"], bool] = Field(default_factory=dict)
    """`{from_events}`, default true: references by `rescore-requested` count, and its producers are trusted.
    `false`: the new score is judged without that reference, and flagged `reference_refused`."""
    gates: GateSettings = GateSettings()
    """Limits for gates that run commands or read files."""

    @property
    def named_chains(self) -> dict[str, ChainSettings]:
        """`defaults` and each chain, by their path in the file."""
        return {"defaults": self.defaults} | {f"chains.{name}": chain for name, chain in self.chains.items()}

    @property
    def memories(self) -> list[MemorySettings]:
        """The models that chains embed memories with, each once."""
        return list(dict.fromkeys(c.memory for c in self.named_chains.values() if c.memory))
