"""
Sessions of the example history whose text addresses the judge, and their scores.

The sessions and the judge's replies are written in `injected.yaml`. The product's own code does the rest: it
finds the
text, has the session judged once more without it, and decides about total, samples and flags.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.scores.fields import no_results
from tarsy_scoring.scoring.offline import score_offline
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import estimate_tokens

Row = dict[str, Any]

_WRITTEN: Mapping[str, Any] = packaged_yaml(__package__, "injected.yaml")
OBEDIENT_TOTAL = 96  # of a judge that obeys the text
STEP = timedelta(seconds=20)  # between two entries of a session


def session_with_injection(number: int, row: Mapping[str, Any], tools: Sequence[str]) -> Row:
    """
    A session, as a session file has it, one result of which addresses the judge.

    Args:
        number: Chooses the text.
        row: Its row in `sessions`.
        tools: Names of the tools that its agent had.
    """
    written, text = (
        _WRITTEN["sessions"][row["alert_type"]],
        _WRITTEN["texts"][number % len(_WRITTEN["texts"])],
    )
    name, ended = row["session_id"], row["completed_at"]
    began = ended - STEP * (len(written["steps"]) + 1)

    def id_of(part: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"{name}/{part}"))

    def events() -> Iterator[Row]:
        for place, step in enumerate([*written["steps"], written["analysis"]], start=1):
            event = {"event_id": id_of(f"event/{place}"), "sequence_number": place, "status": "completed"}
            event |= {"created_at": (began + STEP * place).isoformat(), "metadata": {}}
            if isinstance(step, str):
                is_last = place > len(written["steps"])
                yield event | {"event_type": "final_analysis" if is_last else "llm_thinking", "content": step}
            else:
                call = {"server_name": "example", "tool_name": step["tool"], "is_error": False}
                call |= {"arguments": json.dumps(step["arguments"])}
                content = step["result"].replace("{text}", text)
                yield event | {"event_type": "llm_tool_call", "content": content, "metadata": call}

    execution = {"execution_id": id_of("agent"), "agent_name": "NetworkAgent", "agent_index": 0}
    stage = {"stage_id": id_of("stage"), "stage_name": "investigation", "stage_index": 0}
    stage |= {"stage_type": "investigation", "status": "completed"}
    known = {name: row[name] for name in ("session_id", "chain_id", "alert_type", "labels", "status")}
    return known | {
        "alert_data": written["alert"],
        "created_at": began.isoformat(),
        "started_at": began.isoformat(),
        "completed_at": ended.isoformat(),
        "final_analysis": written["analysis"],
        "available_tools": [
            {"server_name": "example", "tool_name": tool, "description": ""} for tool in tools
        ],
        "stages": [stage | {"executions": [execution | {"status": "completed", "events": list(events())}]}],
    }


async def judge_with_injection(
    settings: Settings, registry: CriteriaRegistry, session: Row, score: Row, model: str, *, obeys: bool
) -> list[Row]:
    """
    Replace the results of a score by those of a judgement of its session; the total that counts stays.

    Args:
        settings: The session's chain has one provider.
        score: A row of `session_scores` with a total.
        model: The judge.
        obeys: Whether the judge obeys the text, so that the total without the text counts.

    Returns:
        The rows of its turns.
    """
    criteria = registry.get(score["criteria"])
    (provider,) = settings.chain(session["chain_id"]).providers
    replies = _Replies(provider, model, score["total_score"], score["judge_outcome"], obeys=obeys)
    # Not the HTTP client of a judge: it has the one method that is called.
    clients = cast(Any, {provider: replies})
    timeline = parse_session(session)
    document = await score_offline(
        settings, registry, clients, timeline, session["chain_id"], with_judge=True
    )
    assert (document["status"], document["total_score"]) == ("completed", score["total_score"]), document
    score |= {
        name: document[name] for name in no_results() if name in document and name != "judge_fingerprint"
    }
    same = {
        "score_id": score["score_id"],
        "attempt": score["attempt"],
        "criteria_hash": criteria.criteria_hash,
    }
    same |= {"context_hash": "example", "nonce": "example"}
    return [asdict(turn) | same | {"ordinal": n} for n, turn in enumerate(replies.turns, start=1)]


class _Replies:
    """Answers as a client of a judge, with the replies from `injected.yaml`; keeps its `turns`."""

    def __init__(self, provider: str, model: str, total: int, outcome: str, *, obeys: bool) -> None:
        self.turns: list[Turn] = []
        self._provider, self._model = provider, model
        self._first = "obeyed" if obeys else "ignored"
        finding = _WRITTEN["findings"][outcome]
        self._stated = {
            "obeyed": {"total": OBEDIENT_TOTAL},
            "ignored": {"total": total, "outcome": outcome, "finding": finding},
            "masked": {"total": total, "outcome": outcome, "finding": finding},
            "missing_tools": {},
        }

    async def ask(self, question: Question, **_: Any) -> Turn:
        """See `JudgeClient.ask`."""
        name = self._first if question.kind == "analysis" else question.kind
        reply: str = _WRITTEN["replies"][name].format_map(self._stated[name])
        read, written = sum(estimate_tokens(m.content) for m in question.messages), estimate_tokens(reply)
        turn = Turn(
            kind=question.kind,
            reply=reply,
            provider=self._provider,
            model_requested=self._model,
            model_served=self._model,
            input_tokens=read,
            cached_input_tokens=0,
            output_tokens=written,
            cost_usd=round((2 * read + 8 * written) / 1e6, 6),
            latency_ms=9000,
            finish_reason="stop",
        )
        self.turns.append(turn)
        return turn
