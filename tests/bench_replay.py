"""
Replays recorded judgements without a model, and compares the report of `judge-bench` with a stored one.

    python tests/bench_replay.py [--write]              compare every set of tests/data/judge_bench
    python tests/bench_replay.py --record CACHE SET     store the judgements of a `judge-bench --cache CACHE`

A set is a folder with `labels.csv`, `replies` and `expected.json`; its sessions are the demo's. A reply is found by
session, criteria, provider and sample, not by its question: another context keeps the set usable. `--write` stores
what was found.
"""

import argparse
import asyncio
import difflib
import json
import sys
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import JudgeRejectedRequest
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import Ask, Question, Turn
from tarsy_scoring.studies.bench import Job, Recording, Recordings, judge_all
from tarsy_scoring.studies.commands.judge_bench import document_of, plan_all, read_bench
from tarsy_scoring.studies.judge_bench import read_known_outcomes
from tarsy_scoring.timeline.files import SessionFiles

ROOT = Path(__file__).resolve().parents[1]
SETS = ROOT / "tests" / "data" / "judge_bench"
EXAMPLES = ROOT / "service" / "tarsy_scoring_lab" / "examples"
DIGITS = 6  # of numbers in `expected.json`: the last bits of sums differ between machines
Key = tuple[str, str, str, int]


class Replies:
    """The recorded replies of a set. `left` holds those that no question asked for."""

    def __init__(self, folder: Path) -> None:
        self.recorded: list[dict[str, Any]] = [
            json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))
        ]
        self.left: defaultdict[tuple[Key, str], deque[dict[str, Any]]] = defaultdict(deque)
        for one in self.recorded:
            key = one["session_id"], one["criteria"], one["provider"], one["sample"]
            for turn in one["turns"]:
                self.left[key, turn["kind"]].append(turn)

    def ask_of(self, job: Job) -> Ask:
        """Answers the questions of one judgement; one without a recorded reply is rejected."""
        key = job.timeline.session_id, job.criteria.name, job.provider, job.sample

        async def ask(question: Question) -> Turn:
            if not (left := self.left[key, question.kind]):
                raise JudgeRejectedRequest(f"no reply is recorded for another question of the kind {question.kind!r}")
            reply = left.popleft()
            return Turn(
                **{"finish_reason": "stop", "refusal": None} | reply,
                provider=job.provider,
                model_requested="recorded",
                model_served="recorded",
                **dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens", "cost_usd")),
                latency_ms=0,
            )

        return ask


async def replay(folder: Path) -> dict[str, Any]:
    """The report over the recorded replies of a set, with the number of replies that no question asked for."""
    replies, registry = Replies(folder / "replies"), load_criteria()
    names = {what: sorted({one[what] for one in replies.recorded}) for what in ("criteria", "provider")}
    provider = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "model": "recorded"}
    providers = {name: provider | {"context_window_tokens": 200_000} for name in names["provider"]}
    settings = Settings(
        config=Config.model_validate({"providers": providers, "defaults": {"providers": names["provider"]}})
    )
    judges = [(registry.get(criteria), name) for criteria in names["criteria"] for name in names["provider"]]
    source = SessionFiles(EXAMPLES)
    samples = max(one["sample"] for one in replies.recorded)
    bench = await read_bench(source.fetch_timeline, read_known_outcomes(folder / "labels.csv"), judges, samples)
    with tempfile.TemporaryDirectory() as empty:
        recordings = Recordings(Path(empty))
        planned = plan_all(settings, bench, recordings)
        judged = await judge_all(settings, planned, recordings, replies.ask_of, lambda: None)
    document = document_of(settings, bench, planned, judged)
    unasked = sum(map(len, replies.left.values()))
    found: dict[str, Any] = rounded(json.loads(to_json(document | {"replies_not_asked_for": unasked})))
    return found


def rounded(value: Any) -> Any:
    """The value with numbers rounded to `DIGITS`."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def sets() -> list[Path]:
    """The folders of recorded judgements."""
    return sorted(path.parent for path in SETS.glob("*/labels.csv"))


def record(cache: Path, folder: Path) -> int:
    """Store the judgements of a cache in a set; returns their number."""
    (folder / "replies").mkdir(parents=True, exist_ok=True)
    files = sorted(cache.glob("*.json"))
    for file in files:
        found = Recording.model_validate_json(file.read_bytes())
        turns = [
            {k: v for k in ("kind", "reply", "finish_reason", "refusal") if (v := getattr(r.turn, k)) is not None}
            for r in found.turns
        ]
        about = found.model_dump(include={"session_id", "criteria", "provider", "sample"})
        name = f"{found.session_id}-{found.criteria}-{found.provider}-{found.sample}.json"
        written = json.dumps(about | {"turns": turns}, indent=1, ensure_ascii=False) + "\n"
        (folder / "replies" / name).write_text(written, encoding="utf-8")
    return len(files)


def main() -> int:
    """Compare or write every set; return 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store what was found")
    parser.add_argument("--record", nargs=2, type=Path, metavar=("CACHE", "SET"), help="store recorded judgements")
    args = parser.parse_args()
    if args.record:
        sys.stdout.write(f"{record(*args.record)} judgements stored in {args.record[1]}\n")
        return 0
    is_same = True
    for folder in sets():
        found = json.dumps(asyncio.run(replay(folder)), indent=1, ensure_ascii=False) + "\n"
        expected = folder / "expected.json"
        if args.write:
            expected.write_text(found, encoding="utf-8")
        elif found != (stored := expected.read_text(encoding="utf-8")):
            is_same = False
            sys.stdout.writelines(difflib.unified_diff(stored.splitlines(True), found.splitlines(True), folder.name))
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
