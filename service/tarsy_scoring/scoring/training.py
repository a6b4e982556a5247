"""
Training material: exported scores with their sessions, in the chat format that fine-tuning tools read.

A line has `messages`: the user gives the investigation as the judge read it, up to the final analysis, and
the assistant answers with that. Our own fields stand beside it under names to which OpenAI, TRL and Axolotl
give no meaning (`labels`, for one, would replace the tokens to be learned in TRL). What differs from score to
score is one text of JSON: loaders derive the type of each column from the first lines, and refuse a nested
object with other keys.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import CallerRefused, TimelineUnavailable, Unscorable
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.labels.labels import last_labels
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.export import ExportedScore
from tarsy_scoring.scoring.providers import context_budget
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.model import Timeline, TimelineSource
from tarsy_scoring.timeline.render.context import FittedContext, build_context
from tarsy_scoring.timeline.render.fence import without_prefixes

READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """
    The line of one score.

    Args:
        text: Encoded, with the line end; empty if the score is left out.
        why_not: Why it is left out; empty if it is not.
    """

    text: bytes = b""
    why_not: str = ""


class NoFinalAnalysis(Unscorable):
    """The session ended without a final analysis, so it shows nothing to learn."""


async def training_lines(
    batches: AsyncIterable[Sequence[ExportedScore]],
    database: Database,
    source: TimelineSource,
    settings: Settings,
    registry: CriteriaRegistry,
) -> AsyncIterator[Line]:
    """
    Read the session of each score, one after another, and make the line.

    Raises:
        TimelineUnavailable: The source is away; lines made before are valid.
        DatabaseAway: See `Database.once`.
    """
    async for batch in batches:
        labels = await last_labels(database, [score.document["score_id"] for score in batch])
        for score in batch:
            session_id = score.document["session_id"]
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    timeline = await source.fetch_timeline(session_id)
                context = await asyncio.to_thread(context_of, score.document, timeline, settings, registry)
                yield Line(line_of(score, context, labels.get(score.document["score_id"], ())))
            except CallerRefused:
                raise
            except (TimelineUnavailable, TimeoutError) as error:
                await source.check()
                yield Line(why_not=f"session {session_id}: {error or 'it took too long to read'}")
            except Unscorable as error:
                yield Line(why_not=f"session {session_id}: {error}")


def context_of(
    document: Mapping[str, Any], timeline: Timeline, settings: Settings, registry: CriteriaRegistry
) -> FittedContext:
    """
    Render the session as the judge of this score reads it, without a reference. The nonce is made of the id
    of the score, so that each export gives the same text.

    The room is that of the provider that judged it, and the criteria are the present ones of this name. If
    one of them is no longer configured, that of the chain is used.

    Raises:
        ContextTooLong: See `build_context`.
    """
    chain = settings.chain(document["chain_id"])
    asked = [turn["provider"] for turn in document["turns"]]
    provider = next((name for name in asked if name in settings.config.providers), chain.providers[0])
    criteria = registry.of_chain(chain, document["criteria"] if document["criteria"] in registry else None)
    room = context_budget(settings.config.providers[provider], criteria)
    masking = masking_of(settings.config.masking_patterns)
    return build_context(timeline, document["score_id"].hex[:16], room, masking=masking)


def line_of(score: ExportedScore, context: FittedContext, labels: Sequence[Mapping[str, Any]]) -> bytes:
    """
    Encode the line of a score.

    Args:
        labels: By people, the last of each.

    Raises:
        NoFinalAnalysis: The session has none.
    """
    analysis = context.entry_text(context.final_analysis)
    if analysis is None:
        raise NoFinalAnalysis("it has no final analysis, so there is no answer to learn")
    record = {
        "score": score.document,
        "alert_type": score.alert_type,
        "session_labels": dict(score.labels),
        "references": score.references,
        "labels_by_people": labels,
    }
    line = {
        "messages": [
            {"role": "user", "content": _question(context)},
            {"role": "assistant", "content": without_prefixes(analysis).strip()},
        ],
        "session_id": score.document["session_id"],
        "total_score": score.document["total_score"],
        "tarsy_scoring": to_json(record).decode(),
    }
    return to_json(line) + b"\n"


def _question(context: FittedContext) -> str:
    """
    Alert and conversation up to the final analysis.

    What came after it is unknown to an agent that has to write it, and would give it away. So would earlier
    entries that hand in the answer: a model would learn to copy them.
    """
    text, end = context.conversation, context.entries[context.final_analysis][0]
    for start, stop in sorted((context.entries[entry] for entry in context.answers), reverse=True):
        if stop <= end:
            text, end = text[:start] + text[stop:], end - (stop - start)
    last_line = context.conversation.rpartition("\n")[2]
    return f"{context.alert}\n\n{text[:end]}{last_line}"
