"""
Lets the judge model read what scores say about missing tools, within a budget.

The model's statements are not trusted. Every need rests on quotes that occur word for word in an analysis
that the model was shown; a need without a quote is dropped. That agents have a tool for a need is a
proposal, which a person confirms in the ledger. Each chain has one question, with as many analyses as fit,
worst scores first. The text has passed the `Sanitizer`, and the chain's pauses, budget and limits apply.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from uuid import UUID, uuid4

from pydantic import BaseModel, Field

from tarsy_scoring.analytics.analytics import SELECTED
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import AttemptError, WaitFor
from tarsy_scoring.evaluation.tool_names import normalise
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.read.json_reply import object_schema, output_schema, say_json
from tarsy_scoring.judge.verdict import Ask, Message, Question, ReplyFormat, Turn
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Call, Permit, Result
from tarsy_scoring.missing_tools.demand import read_called
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.timeline.clean.masking import Masking, masking_of
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.context import estimate_tokens
from tarsy_scoring.timeline.render.fence import fence, new_nonce
from tarsy_scoring.timeline.text import cut

LONGEST_NOTE = 6000  # characters per analysis; judges put their requests first
LONGEST_TEXT, LONGEST_TITLE = 400, 120
MOST_NEEDS = 40  # per answer: people do not read longer lists, and no answer may flood the report
SHORTEST_QUOTE = 12  # letters and digits; shorter ones such as "the logs" occur in every analysis
MOST_TOOLS = 300  # tools of the agents that the model compares with
LABEL_TOKENS = 6  # for the label before each text, such as `[S12]`
OVERHEAD_TOKENS = 1500  # the instructions, the schema and the fence

# Analyses in the latest scores, at most $5 for each chain, worst scores first, with the chain's number. They are
# not cut in SQL: masking recognises secrets by their shape, and half a secret has lost it.
NOTES = f"""
SELECT score_id, chain_id, text, of_chain,
  ARRAY(SELECT tool_name FROM {{schema}}.score_missing_tools t WHERE t.score_id = s.score_id) AS names
FROM (
  SELECT s.score_id, s.chain_id, s.missing_tools_analysis AS text,
    count(*) OVER (PARTITION BY s.chain_id) AS of_chain,
    row_number() OVER (PARTITION BY s.chain_id
                       ORDER BY s.total_score NULLS LAST, s.completed_at DESC, s.score_id) AS n
  FROM {{schema}}.session_scores s WHERE {SELECTED} AND s.missing_tools_analysis <> '') s
WHERE n <= $5 ORDER BY of_chain DESC, chain_id, n
"""


@dataclass(frozen=True, slots=True)
class Note:
    """What a judge wrote about missing tools in a score, and the `names` that were read from it."""

    score_id: UUID
    text: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage in a score's note."""

    score_id: UUID
    quote: str


@dataclass(frozen=True, slots=True)
class Need:
    """
    Something that a tool could do, with at least one quote that asks for it.

    Args:
        name: The missing tool in the quoted scores that is this need, as the model says; None: it said none.
        exists_as: The tool of the agents that meets the need, as the model says; None without a `name`.
    """

    title: str
    what: str
    quotes: tuple[Quote, ...]
    name: str | None = None
    exists_as: str | None = None


@dataclass(slots=True)
class ChainNeeds:
    """
    The needs that a model found in a chain's analyses.

    Args:
        read: Analyses that the model was shown, of `notes`.
        quotes_dropped: Quotes that occur in no analysis.
        why_not: Why the model read none; None: it did.
    """

    chain_id: str | None
    notes: int
    read: int = 0
    needs: list[Need] = field(default_factory=list)
    quotes_dropped: int = 0
    why_not: str | None = None


class _Cited(BaseModel):
    review: str
    quote: str


class _Need(BaseModel):
    title: Annotated[str, Field(min_length=1)]
    what: str
    quotes: list[_Cited]
    name: str = ""
    exists_as: str = ""


class _Needs(BaseModel):
    needs: list[_Need]


_TEXT = {"type": "string"}
_CITED_SCHEMA = {"type": "array", "items": object_schema({"review": _TEXT, "quote": _TEXT})}
_NEED_TEXTS = dict.fromkeys(("title", "what", "name", "exists_as"), _TEXT)
_NEED_SCHEMA = object_schema(_NEED_TEXTS | {"quotes": _CITED_SCHEMA})
_REPLY = ReplyFormat("needs", object_schema({"needs": {"type": "array", "items": _NEED_SCHEMA}}))


# --- the budget ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReportJudge:
    """
    Asks the model about one chain, within the fleet's limits and the report's budget.

    A call is charged at the maximum until it is settled, and afterwards if the cost stays unknown.

    Args:
        left_usd: The money that is left for calls.
        deadline_s: Deadline for one question.
        report_id: Stands for a score id in the ledger of calls.
    """

    client: JudgeClient
    limits: Limits
    left_usd: float
    deadline_s: float
    chain_id: str | None
    report_id: UUID = field(default_factory=uuid4)

    async def __call__(self, question: Question) -> Turn:
        """See `Ask`. Raises: WaitFor: The call could cost more than the rest of the budget."""
        factor = self.limits.token_factor(self.client.provider)
        clock = AttemptClock(self.deadline_s)
        return await self.client.ask(question, clock=clock, permits=self, token_factor=factor)

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> tuple[Permit, float]:
        """
        See `Permits`.

        Raises:
            WaitFor: The call could cost more than the rest of the budget, or a pause or a limit forbids it.
            DatabaseAway: Pauses are unknown.
        """
        assert most_usd is not None, "providers without prices are not asked"
        await self.limits.refresh()  # pauses and circuits may change during a report, which takes long
        if most_usd > self.left_usd:
            left = max(0.0, self.left_usd)
            reason = f"the next call may cost {most_usd:.4f} USD; {left:.4f} are left of --max-usd"
            raise WaitFor(reason, 1, "budget")
        permit = await self.limits.admit(Call(provider, self.chain_id, self.report_id, tokens, most_usd))
        self.left_usd -= most_usd
        return permit, most_usd

    async def settle(self, permit: tuple[Permit, float], **result: Any) -> None:
        """See `Permits`."""
        of_fleet, most_usd = permit
        settled = Result(**result)
        if settled.cost_usd is not None:
            self.left_usd += most_usd - settled.cost_usd
        await self.limits.settle(of_fleet, settled)


# --- reading -------------------------------------------------------------------------------------------


async def read_needs(
    database: Database,
    limits: Limits,
    settings: Settings,
    clients: Mapping[str, JudgeClient],
    selection: Selection,
    *,
    max_usd: float,
    most_notes: int,
) -> list[ChainNeeds]:
    """
    Find the needs in each chain's analyses by judges, the chain with most of them first.

    Args:
        clients: By provider. The first provider of the chain with prices and a large enough window is asked.
        max_usd: Budget for all calls together.
        most_notes: Maximum number of analyses per chain.

    Raises:
        DatabaseAway: Before the first question; later failures only end the reading for a chain.
    """
    await limits.refresh()
    rows = await database.rows(NOTES, *selection.arguments, most_notes)
    notes, found = defaultdict[str | None, list[Note]](list), dict[str | None, ChainNeeds]()
    for row in rows:
        notes[row["chain_id"]].append(Note(row["score_id"], row["text"], tuple(row["names"])))
        found[row["chain_id"]] = ChainNeeds(row["chain_id"], row["of_chain"])
    left_usd, masking = max_usd, masking_of(settings.config.masking_patterns)
    for chain_id, needs in found.items():
        chain = settings.chain(chain_id)
        usable = [name for name in chain.providers if _is_usable(clients[name], limits.token_factor(name))]
        if not chain.judge:
            needs.why_not = "its judge is switched off (`judge`)"
        elif not usable:
            needs.why_not = "no provider of it has known prices and a window that holds an analysis"
        else:
            client = clients[usable[0]]
            ask = ReportJudge(client, limits, left_usd, settings.attempt_timeout_s, chain_id)
            room = room_for(client.settings, limits.token_factor(client.provider))
            try:
                menu = await read_called(database, replace(selection, chain=chain_id))
                await find_needs(needs, notes[chain_id], menu, ask, room, chain.max_reminders, masking)
            except (AttemptError, DatabaseAway) as error:
                needs.why_not = str(error)
            left_usd = ask.left_usd
    return list(found.values())


def room_for(provider: ProviderSettings, token_factor: float) -> int:
    """
    Compute the room for text in a question, in estimated tokens: possibly 0.

    The context window minus the instructions, the answer, one repetition with twice the limit, and a
    reminder that repeats it.
    """
    tokens = (provider.context_window_tokens - 3 * provider.max_reply_tokens) / token_factor
    return max(0, int(tokens) - OVERHEAD_TOKENS)


def _is_usable(client: JudgeClient, token_factor: float) -> bool:
    room = room_for(client.settings, token_factor)
    return client.prices.are_known and room >= estimate_tokens("x" * LONGEST_NOTE)


async def find_needs(
    needs: ChainNeeds,
    notes: Sequence[Note],
    menu: Iterable[str],
    ask: Ask,
    room: int,
    max_reminders: int,
    masking: Masking,
) -> None:
    """
    Ask the model once for the needs in the notes, as many as fit into `room` estimated tokens.

    Args:
        menu: Tools that the chain's agents have.
    """
    nonce = new_nonce()
    sanitizer = Sanitizer(nonce, masking=masking)
    tools = {cut(sanitizer.line("", tool), LONGEST_TITLE): tool for tool in sorted(menu)[:MOST_TOOLS]}
    listed = "\n".join(("[TOOLS]", *tools))
    room -= estimate_tokens(listed)
    # Sanitize before cutting: masking would not recognise a secret that is cut in half.
    texts = [sanitizer.text(str(note.score_id), note.text) for note in notes]
    shown: list[Note] = []
    for note, text in zip(notes, texts, strict=True):
        room -= estimate_tokens(text[:LONGEST_NOTE]) + LABEL_TOKENS
        if room < 0:
            break
        shown.append(replace(note, text=text[:LONGEST_NOTE]))
    instructions: str = packaged_yaml(__package__, "prompts.yaml")["find"]
    labelled = "\n\n".join((listed, *(f"[S{n}]\n{note.text}" for n, note in enumerate(shown, start=1))))
    opening = [
        Message("system", instructions.format(schema=output_schema(_REPLY.schema), most=MOST_NEEDS)),
        Message("user", fence(labelled, nonce)),
    ]
    conversation = Conversation(ask, opening, _REPLY, max_reminders=max_reminders)
    answer, _ = await say_json(conversation, "missing_tools", _Needs)
    claimed, needs.quotes_dropped = checked(answer.needs, shown, tools)
    needs.read = len(shown)
    needs.needs = [
        replace(
            need,
            title=cut(sanitizer.line("", need.title), LONGEST_TITLE) or "A need without a title",
            what=cut(sanitizer.text("", need.what), LONGEST_TEXT),
        )
        for need in sorted(claimed, key=lambda need: -len(need.quotes))[:MOST_NEEDS]
    ]


def checked(
    claimed: Iterable[_Need], notes: Sequence[Note], tools: Mapping[str, str]
) -> tuple[list[Need], int]:
    """
    Keep the quotes that occur in the notes they cite, one for each score, and names that notes and menu hold.

    Returns:
        The needs that keep a quote, and how many quotes occur nowhere.
    """
    by_label = {f"S{n}": note for n, note in enumerate(notes, start=1)}
    texts = {label: _bare(note.text) for label, note in by_label.items()}
    found, dropped = [], 0
    for need in claimed:
        quotes: dict[UUID, Quote] = {}
        for cited in need.quotes:
            label, quote = cited.review.strip().strip("[]"), _bare(cited.quote)
            if label in by_label and len(quote) >= SHORTEST_QUOTE and quote in texts[label]:
                score_id = by_label[label].score_id
                quotes.setdefault(score_id, Quote(score_id, cut(cited.quote, LONGEST_TEXT)))
            else:
                dropped += 1
        if quotes:
            proposal = _proposal(need, quotes, notes, tools)
            found.append(Need(need.title, need.what, tuple(quotes.values()), *proposal))
    return found, dropped


def _proposal(
    need: _Need, quotes: Container[UUID], notes: Iterable[Note], tools: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """`name` and `exists_as` of a need, where quoted scores miss the one and agents have the other."""
    names = (name for note in notes if note.score_id in quotes for name in note.names)
    name = next((name for name in names if normalise(name) == normalise(need.name)), None)
    return name, tools.get(need.exists_as) if name else None


def _bare(text: str) -> str:
    """The case-folded letters and digits in a text, for comparing quotes with notes."""
    # Models change punctuation, case and line ends when they quote.
    return "".join(c for c in text.casefold() if c.isalnum())
