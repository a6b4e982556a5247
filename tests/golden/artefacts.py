"""
The golden artefacts, one function each. Functions import the code themselves: a failed import costs one artefact.

Prose (help texts, descriptions, titles) may change freely and is left out. A long text is kept as its SHA-256.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Content = str | dict[str, Any] | list[Any]
NONCE = "0123456789abcdef"
TIGHT_BUDGET_TOKENS, TIGHT_FOR_DEMO_TOKENS = 8_000, 2_300


class Skipped(Exception):
    """The machine lacks a program or data that the artefact needs."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The checkout, the folder of recorded sessions, and a stack that stops the servers that artefacts start."""

    root: Path
    sessions: Path
    stack: ExitStack

    @property
    def package(self) -> Path:
        return self.root / "service"


def criteria(_: Surroundings) -> dict[str, Content]:
    """Hash, token budget and judge fingerprint of the shipped criteria."""
    from tarsy_scoring.config.chains import ProviderSettings
    from tarsy_scoring.judge.criteria import load_criteria
    from tarsy_scoring.judge.verdict import Turn
    from tarsy_scoring.scoring.columns import judge_fingerprint
    from tarsy_scoring.scoring.providers import context_budget

    provider = ProviderSettings(temperature=0.25)
    turn = Turn("analysis", "67", "main", "judge-model", "judge-model-1", 9, 1, 1, 0.5, 1, "stop")
    return {
        "criteria.json": {
            c.name: {
                "criteria_hash": c.criteria_hash,
                "strategy": c.strategy,
                "content": _sha256(c.content),
                "budget_tokens": context_budget(provider, c),
                "judge_fingerprint": judge_fingerprint(c.criteria_hash, provider, turn),
            }
            for c in load_criteria()
        }
    }


def contexts(surroundings: Surroundings) -> dict[str, Content]:
    """Context, evidence, interaction metrics and diagnosis of each demo session."""
    files = sorted(surroundings.package.glob("*/**/examples/demo-*.json"))
    return {"contexts.json": asyncio.run(_contexts(files, TIGHT_FOR_DEMO_TOKENS))}


def recorded(surroundings: Surroundings) -> dict[str, Content]:
    """As `contexts`, for each recorded session."""
    files = sorted(surroundings.sessions.glob("*.json"))
    if not files:
        raise Skipped("there are no recorded sessions; see --sessions")
    return {"recorded.json": asyncio.run(_contexts(files, TIGHT_BUDGET_TOKENS))}


async def _contexts(files: list[Path], tight_budget: int) -> dict[str, Any]:
    """By session id; an `error_kind` replaces a session that cannot be read or fitted."""
    from tarsy_scoring.config.chains import ProviderSettings
    from tarsy_scoring.errors import ScoringError
    from tarsy_scoring.evaluation.diagnosis import diagnose
    from tarsy_scoring.evaluation.interaction import measure_interaction
    from tarsy_scoring.judge.criteria import load_criteria
    from tarsy_scoring.scoring.providers import context_budget
    from tarsy_scoring.timeline.evidence import check_evidence
    from tarsy_scoring.timeline.files import SessionFiles
    from tarsy_scoring.timeline.render.context import build_context

    shipped = load_criteria()
    default_budget = context_budget(ProviderSettings(), shipped.get("investigation-methodology"))

    def kind_of(error: ScoringError) -> dict[str, str]:
        return {"error": getattr(error, "error_kind", type(error).__name__)}

    def or_kind(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except ScoringError as error:
            return kind_of(error)

    def context(timeline: Any, budget: int) -> dict[str, Any]:
        fitted = build_context(timeline, NONCE, budget)
        masked = build_context(timeline, NONCE, budget, mask_injections=True)
        text = f"{fitted.alert}\0{fitted.conversation}"
        return {
            "sha256": _sha256(text),
            "context_hash": fitted.context_hash,
            "length": len(text),
            "tokens": fitted.tokens,
            "shown_share": round(fitted.shown_share, 6),
            "cut": f"{len(fitted.cut_entries)} {_sha256(fitted.cut_entries)}",
            "not_shown": f"{len(fitted.not_shown)} {_sha256(fitted.not_shown)}",
            "flags": sorted(fitted.flags),
            "entries": f"{len(fitted.entries)} {_sha256(fitted.entries)}",
            "injections": dict(Counter(found.pattern for found in fitted.injections)),
            "redacted": dict(Counter(re.findall(r"\[REDACTED:(\w+)#\d+\]", text))),
            "masked_hash": masked.context_hash,
            "questions": _sha256([[m.role, m.content] for c in shipped for m in c.open_conversation(fitted)]),
        }

    found = {}
    for file in files:
        try:
            timeline = await SessionFiles(file.parent).fetch_timeline(file.stem)
        except ScoringError as error:
            found[file.stem] = kind_of(error)
            continue
        interaction = measure_interaction(timeline)
        findings = diagnose(interaction)
        missing = timeline.evidence.missing
        found[file.stem] = {
            "context": or_kind(lambda t=timeline: context(t, default_budget)),
            "tight_context": or_kind(lambda t=timeline: context(t, tight_budget)),
            "evidence": or_kind(lambda t=timeline: check_evidence(t, 0.0, may_change=False)),
            "evidence_counts": {"expected": timeline.evidence.expected, "read": timeline.evidence.read},
            "missing": f"{len(missing)} {_sha256(missing)}",
            "commands": interaction.total_commands,
            "errors": interaction.error_count,
            "interaction": _sha256(interaction.document()),
            "patterns": [finding.pattern for finding in findings],
            "diagnosis": _sha256([[f.pattern, f.likely_cause, f.evidence] for f in findings]),
        }
    return found


def plans(surroundings: Surroundings) -> dict[str, Content]:
    """Plans of the hot statements: nodes, relations and indexes, no costs."""
    from golden.databases import read_plans

    return {"plans.json": read_plans(surroundings.stack)}


ARTEFACTS: Mapping[str, Callable[[Surroundings], dict[str, Content]]] = {
    make.__name__: make for make in (*(criteria, contexts, recorded, plans),)
}


def _sha256(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
