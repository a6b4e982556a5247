"""
Find the needs in any number of free-text analyses with the judge model: map each analysis, then merge.

The model's statements are not trusted. Every need rests on quotes that occur word for word in an analysis the
model was shown; a need without a quote is dropped, and merging needs adds no quote. No question contains
analyses of two chains, and all text in questions has passed the `Sanitizer`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field

from tarsy_scoring.analytics.analytics import SELECTED, Selection
from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.errors import RetryLater, Unscorable, WaitFor
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.read.json_reply import Model, object_schema, output_schema, say_json
from tarsy_scoring.judge.verdict import Ask, Message, ReplyFormat
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.timeline.clean.masking import SHIPPED, Masking
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.context import estimate_tokens
from tarsy_scoring.timeline.render.fence import fence, new_nonce
from tarsy_scoring.timeline.text import cut

LONGEST_NOTE = 6000  # characters of one analysis; judges put their requests first
LONGEST_TEXT, LONGEST_TITLE = 400, 120
MOST_NEEDS = 40  # of one answer: people do not read longer lists, and no answer may flood the report
SHORTEST_QUOTE = 12  # letters and digits; shorter ones such as "the logs" occur in every analysis
QUOTES_PER_NEED = 5
LABEL_TOKENS = 6  # of the label before each text, such as `[S12]`
UNTITLED = "A need without a title"

# Number of latest scores with an analysis of missing tools per chain, most first.
COUNTS = f"""
SELECT s.chain_id, count(*) AS notes
FROM {{schema}}.session_scores s
WHERE {SELECTED} AND s.missing_tools_analysis <> ''
GROUP BY s.chain_id ORDER BY notes DESC, s.chain_id
"""

# The analyses of these chains ($6; '' for scores without a chain), at most $5; those of the worst scores come
# first. They are not cut in SQL: masking recognises secrets by their shape, and half a secret has lost it.
ANALYSES = f"""
SELECT s.score_id, s.chain_id, s.missing_tools_analysis AS text
FROM {{schema}}.session_scores s
WHERE {SELECTED} AND s.missing_tools_analysis <> '' AND coalesce(s.chain_id, '') = ANY($6::text[])
ORDER BY s.total_score NULLS LAST, s.completed_at DESC, s.score_id LIMIT $5
"""

# Errors that end the reading of a chain and are reported for it.
_NOT_NOW = (WaitFor, RetryLater, Unscorable, DatabaseAway)


@dataclass(frozen=True, slots=True)
class Note:
    """A judge's analysis of missing tools in a score."""

    score_id: UUID
    text: str
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of a score's note."""

    score_id: UUID
    quote: str


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a tool could do, with at least one quote that asks for it."""

    title: str
    what: str
    quotes: tuple[Quote, ...]

    @property
    def scores(self) -> int:
        """Number of scores that ask for it."""
        return len({q.score_id for q in self.quotes})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Analyses of a chain that no model read, with the reason."""

    chain_id: str | None
    notes: int
    why: str


@dataclass(slots=True)
class Findings:
    """
    The needs that the model of one provider found, those that most scores mention first.

    Args:
        chains: Chains of which the model read at least one analysis.
        needs_dropped: Needs beyond `MOST_NEEDS` of one answer, those with the fewest scores.
        is_put_together: All needs were compared with each other; False: the same need may occur twice.
        stopped_by: The error because of which they were not compared; None: no error, but there may be too
            many needs for one question.
    """

    provider: str
    chains: list[str | None] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    notes_read: int = 0
    quotes_dropped: int = 0
    needs_dropped: int = 0
    is_put_together: bool = True
    stopped_by: str | None = None
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The needs found in free-text analyses.

    Args:
        findings: By provider. Needs of different providers were not compared.
        cost_usd: None: unknown.
    """

    findings: list[Findings]
    left_out: list[LeftOut]
    cost_usd: float | None


AskFor = Callable[[Sequence[str | None]], Ask]
"""Gives the model for a question that contains text of these chains."""


class _Cited(BaseModel):
    review: str
    quote: str


class _Need(BaseModel):
    title: Annotated[str, Field(min_length=1)]
    what: str
    quotes: list[_Cited]


class _Needs(BaseModel):
    needs: list[_Need]


class _Group(BaseModel):
    title: Annotated[str, Field(min_length=1)]
    what: str
    members: list[str]


class _Groups(BaseModel):
    groups: list[_Group]


_TEXT = {"type": "string"}


def _list_of(**properties: Any) -> dict[str, Any]:
    return {"type": "array", "items": object_schema(properties)}


_NEEDS_SCHEMA = object_schema(
    {"needs": _list_of(title=_TEXT, what=_TEXT, quotes=_list_of(review=_TEXT, quote=_TEXT))}
)
_GROUPS_SCHEMA = object_schema(
    {"groups": _list_of(title=_TEXT, what=_TEXT, members={"type": "array", "items": _TEXT})}
)


async def count_notes(database: Database, selection: Selection) -> dict[str | None, int]:
    """
    Count the analyses of missing tools per chain, most first.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await database.once(lambda c: c.fetch(database.sql(COUNTS), *selection.arguments))
    return {row["chain_id"]: row["notes"] for row in rows}


async def read_notes(
    database: Database, selection: Selection, chains: Iterable[str | None], most: int
) -> list[Note]:
    """
    Read the analyses of missing tools in scores of these chains, those of the worst scores first.

    Args:
        chains: None in it: scores without a chain.
        most: Maximum number of analyses.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    arguments = (*selection.arguments, most, [chain or "" for chain in chains])
    rows = await database.once(lambda c: c.fetch(database.sql(ANALYSES), *arguments))
    return [Note(row["score_id"], row["text"], row["chain_id"]) for row in rows]


async def find_needs(
    notes: Sequence[Note],
    ask_for: AskFor,
    budget_tokens: int,
    *,
    provider: str,
    max_reminders: int = 1,
    masking: Masking = SHIPPED,
) -> Findings:
    """
    Ask the model for the needs in the notes, chain by chain in batches that fit, then merge equal needs.

    Needs are merged by one question, if it has room for all of them. If the model cannot be asked about a
    chain any more (budget, limits, a refusal), the needs found so far are kept and the next chain follows.
    The chain with the most notes comes first.

    Args:
        ask_for: Gives the model for one chain, and finally for all chains that were read.
        budget_tokens: Room for notes or needs in a question, in estimated tokens.
    """
    questions = _Questions(budget_tokens, max_reminders, masking)
    found = Findings(provider)
    readings = 0
    by_chain: defaultdict[str | None, list[Note]] = defaultdict(list)
    for note in notes:
        by_chain[note.chain_id].append(note)
    for chain_id, of_chain in sorted(by_chain.items(), key=lambda item: -len(item[1])):
        unread = len(of_chain)
        try:
            for batch in questions.batches_of(of_chain):
                needs, lost = await questions.map(ask_for((chain_id,)), batch)
                found.needs += needs[:MOST_NEEDS]
                found.needs_dropped += len(needs[MOST_NEEDS:])
                found.quotes_dropped += lost
                found.notes_read += len(batch)
                unread -= len(batch)
                readings += 1
        except _NOT_NOW as error:
            found.left_out.append(LeftOut(chain_id, unread, str(error)))
        if unread < len(of_chain):
            found.chains.append(chain_id)
    # Needs of a single reading were compared by the model while reading.
    found.is_put_together = readings < 2 or len(found.needs) < 2
    if not found.is_put_together and questions.fit_in_one(found.needs):
        try:
            found.needs = await questions.reduce(ask_for(found.chains), found.needs)
            found.is_put_together = True
        except _NOT_NOW as error:
            found.stopped_by = str(error)
    found.needs.sort(key=lambda need: (-need.scores, need.title))
    return found


class _Questions:
    """The questions of one reading. All fenced text is sanitized, the model's own earlier answers as well."""

    def __init__(self, budget_tokens: int, max_reminders: int, masking: Masking) -> None:
        self._budget_tokens = budget_tokens
        self._max_reminders = max_reminders
        self._nonce = new_nonce()
        self._sanitizer = Sanitizer(self._nonce, masking=masking)

    def batches_of(self, notes: Sequence[Note]) -> list[list[Note]]:
        """The notes as the model sees them, sanitized and cut, in batches that fit."""
        # Sanitize before cutting: masking would not recognise a secret that is cut in half.
        texts = self._sanitizer.texts([(str(note.score_id), note.text) for note in notes])
        shown = [replace(note, text=text[:LONGEST_NOTE]) for note, text in zip(notes, texts, strict=True)]
        return batches(shown, [estimate_tokens(note.text) for note in shown], self._budget_tokens)

    async def map(self, ask: Ask, notes: Sequence[Note]) -> tuple[list[Need], int]:
        """The needs that the model finds in notes, most scores first, and the number of quotes not found."""
        text = _labelled("S", [note.text for note in notes])
        answer = await self._say(ask, "find", text, ReplyFormat("needs", _NEEDS_SCHEMA), _Needs)
        needs, lost = checked(answer.needs, notes)
        return [self._safe(need) for need in sorted(needs, key=lambda need: -need.scores)], lost

    def fit_in_one(self, needs: Sequence[Need]) -> bool:
        """Whether one question holds all these needs."""
        tokens = [estimate_tokens(_in_words(need)) for need in needs]
        return len(batches(needs, tokens, self._budget_tokens)) == 1

    async def reduce(self, ask: Ask, needs: Sequence[Need]) -> list[Need]:
        """Merge the needs that the model calls the same; the others stay."""
        # Sanitized again: two safe texts joined can form something unsafe.
        text = _labelled(
            "N", [self._sanitizer.text(f"N{n}", _in_words(need)) for n, need in enumerate(needs, start=1)]
        )
        answer = await self._say(ask, "merge", text, ReplyFormat("groups", _GROUPS_SCHEMA), _Groups)
        return [self._safe(need) for need in grouped(answer.groups, needs)]

    def _safe(self, need: Need) -> Need:
        title, what = self._sanitizer.line("", need.title), self._sanitizer.text("", need.what)
        return replace(need, title=cut(title, LONGEST_TITLE) or UNTITLED, what=cut(what, LONGEST_TEXT))

    async def _say(self, ask: Ask, prompt: str, text: str, reply: ReplyFormat, model: type[Model]) -> Model:
        instructions: str = packaged_yaml(__package__, "prompts.yaml")[prompt]
        opening = [
            Message("system", instructions.format(schema=output_schema(reply.schema), most=MOST_NEEDS)),
            Message("user", fence(text, self._nonce)),
        ]
        conversation = Conversation(ask, opening, reply, max_reminders=self._max_reminders)
        answer, _ = await say_json(conversation, "missing_tools", model)
        return answer


def _labelled(letter: str, texts: Iterable[str]) -> str:
    return "\n\n".join(f"[{letter}{n}]\n{text}" for n, text in enumerate(texts, start=1))


def _in_words(need: Need) -> str:
    return f"{need.title}: {need.what}"


# --- checking answers ----------------------------------------------------------------------------------


def batches(items: Sequence[Any], tokens: Sequence[int], budget_tokens: int) -> list[list[Any]]:
    """
    Split items into batches that fit the budget, in order; an item above the budget has a batch of its own.

    Args:
        tokens: Estimated tokens of each item.
    """
    found: list[list[Any]] = []
    room = 0
    for item, cost in zip(items, tokens, strict=True):
        if not found or cost + LABEL_TOKENS > room:
            found.append([])
            room = budget_tokens
        found[-1].append(item)
        room -= cost + LABEL_TOKENS
    return found


def checked(claimed: Iterable[_Need], notes: Sequence[Note]) -> tuple[list[Need], int]:
    """The needs with the quotes that occur in the notes they cite, and the number of quotes that do not."""
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
            found.append(Need(need.title, need.what, tuple(quotes.values())))
    return found, dropped


def grouped(groups: Iterable[_Group], needs: Sequence[Need]) -> list[Need]:
    """Merge the needs of each group under its title, with all quotes; a need is in at most one group."""
    left = {f"N{n}": need for n, need in enumerate(needs, start=1)}
    found = []
    for group in groups:
        members = [
            left.pop(m) for m in dict.fromkeys(m.strip().strip("[]") for m in group.members) if m in left
        ]
        if len(members) == 1:
            found += members
        elif members:
            quotes = {q.score_id: q for need in members for q in need.quotes}
            found.append(Need(group.title, group.what, tuple(quotes.values())))
    return [*found, *left.values()]


def _bare(text: str) -> str:
    """The case-folded letters and digits of a text, for comparing quotes with notes."""
    # Models change punctuation, case and line ends when they quote.
    return "".join(c for c in text.casefold() if c.isalnum())
