"""
`tarsy-scoring demo`: runs the whole service on one machine and scores example sessions beside an example
history.

It runs the same `worker` and `api` as production in processes of their own, reads sessions from a
TARSy-shaped database, and shows the events that arrive on Kafka. Only the parts around the service are
stand-ins.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import aiohttp
import yaml
from pydantic_core import from_json
from rich.console import Console

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.history import CHAINS, Filled, fill
from tarsy_scoring_lab.process import free_port
from tarsy_scoring_lab.recorded_replies import MODEL, RecordedReplies, example_sessions
from tarsy_scoring_lab.stack import Stack
from tarsy_scoring_lab.tarsy import create_tables, load_session

SCRIPTED_LIMIT_S, REAL_LIMIT_S = 120.0, 1800.0
# Published ones of the default judge, gpt-4.1-mini.
PRICES = {"input": 0.4, "cached_input": 0.1, "output": 1.6}
RECORDED = "recorded judgements, replayed at the prices of gpt-4.1-mini (set OPENAI_API_KEY for a live model)"
PUBLISH_TIMEOUT_S = 10.0
PAGES_START_S = 30.0
STOP_WITHIN_S = 20.0
JUDGE_VARIABLES = ("OPENAI_API_KEY", "OPENAI_API_KEY_FILE", "OPENAI_BASE_URL", "SCORING_JUDGE_MODEL")
# The demo scores the failed and the timed-out example as well, and shows some gates.
CONFIG: dict[str, Any] = {
    "defaults": {
        "criteria": "investigation",
        "auto_score_statuses": ["completed", "failed", "timed_out", "cancelled"],
        "gates": [
            {"type": "max_tool_calls", "max": 18},
            {"type": "final_analysis_matches", "pattern": r"\S", "name": "there is a final analysis"},
        ],
    },
    "chains": CHAINS,
}


async def run_demo(
    *, keep_running: bool, broker: Literal["auto", "apache-kafka", "tansu"], stopping: asyncio.Event
) -> int:
    """
    Run the demo. Returns the exit status: 0 if every example was scored, else 1.

    Raises:
        StartRefused: A part did not start, the broker did not take the events, or the worker ended early.
    """
    console = Console(soft_wrap=True)  # a line that is longer than the terminal is not broken, nor in a pipe
    sessions = example_sessions()
    real = {name: value for name in JUDGE_VARIABLES if (value := os.environ.get(name))}
    is_real = "OPENAI_API_KEY" in real or "OPENAI_BASE_URL" in real
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-demo-") as folder:
        config = Path(folder) / "config.yaml"
        recorded = {"base_url": "${OPENAI_BASE_URL}", "model": MODEL, "prices_usd_per_million_tokens": PRICES}
        providers = {} if is_real else {"recorded": recorded}
        config.write_text(yaml.safe_dump(CONFIG | {"providers": providers}), encoding="utf-8")
        started = time.monotonic()
        console.print("starting PostgreSQL, a broker and a judge (the first time they are fetched) ...")
        async with Stack(broker=broker, recorded=RecordedReplies(), judge_latency_s=0.4) as stack:
            env = _environment(stack.env, config, real if is_real else {})
            console.print(f"  broker: {stack.broker} ({stack.broker_reason})", highlight=False)
            await asyncio.to_thread(migrate.migrate, env["SCORING_DATABASE_URL"])
            (provider,) = load_settings(env).config.providers.values()
            console.print(f"  judge: {f'{provider.model} at {provider.base_url}' if is_real else RECORDED}")
            address = f"http://127.0.0.1:{env['SCORING_API_PORT']}"
            logs = Path(folder)
            async with program("api", env, logs) as api:
                # The API takes seconds to start. The worker comes last: the first pass looks for drift in the
                # history.
                source = env["SCORING_TIMELINE_DATABASE_URL"]
                _, filled, _ = await asyncio.gather(
                    _load_sessions(source, sessions),
                    fill(env["SCORING_DATABASE_URL"], datetime.now(UTC)),
                    _wait_until_ready(address, api),
                )
                console.print(f"  {len(sessions)} example sessions are in a TARSy-shaped database")
                await _load_sessions(source, filled.sessions)
                console.print(
                    f"  {filled.scores:,} scores of three months are example data (chains example-...)"
                )
                console.print(f"  ready after {time.monotonic() - started:.0f} s\n")
                page = f"{address}/?q=demo-"
                console.print(f"look at the pages while scores arrive: [bold]{page}[/]\n", highlight=False)
                async with program("worker", env, logs) as worker:
                    limit_s = REAL_LIMIT_S if is_real else SCRIPTED_LIMIT_S
                    ended = await _follow(console, env, sessions, worker, limit_s, stopping)
                    status = _summarise(console, len(sessions), ended.values())
                    if keep_running and not stopping.is_set():
                        _print_tour(console, address, filled)
                        _print_environment(console, address, env)
                        await stopping.wait()
    return status


def _environment(parts: Mapping[str, str], config: Path, judge: Mapping[str, str]) -> dict[str, str]:
    """The variables of the service; those of a real judge replace those of the scripted one."""
    env = {
        **parts,
        "SCORING_CONFIG": str(config),
        "SCORING_METRICS_PORT": "0",
        "SCORING_JUDGE_MODEL": MODEL,
        "SCORING_API_PORT": str(free_port()),
    }
    return {k: v for k, v in env.items() if k not in JUDGE_VARIABLES} | dict(judge) if judge else env


def _print_environment(console: Console, address: str, env: Mapping[str, str]) -> None:
    """Print the variables with which commands in another shell use the parts of the demo."""
    console.print(f"\nleft running until Ctrl-C: {address}; to look around in another shell:\n")
    for name, value in env.items():
        console.print(f"export {name}={value}", highlight=False)


async def _load_sessions(url: str, sessions: Sequence[dict[str, Any]]) -> None:
    """Store sessions in a TARSy-shaped database."""
    await create_tables(url)
    for session in sessions:
        await load_session(url, session)


def _print_tour(console: Console, address: str, filled: Filled) -> None:
    """Print the addresses with what to look at on each."""
    console.print("\na tour of the pages (chains example-... hold example data that no model judged):\n")
    for number, (path, look_at) in enumerate(filled.tour().items(), start=1):
        console.print(f"  {number}. {address}{path}\n     {look_at}", highlight=False)


async def _wait_until_ready(address: str, api: asyncio.subprocess.Process) -> None:
    """Wait until the API is ready. Raises: StartRefused: it ended, or is not ready within `PAGES_START_S`."""
    async with aiohttp.ClientSession() as client:
        for _ in range(int(PAGES_START_S / 0.1)):
            with suppress(aiohttp.ClientError):
                async with client.get(f"{address}/readyz") as answer:
                    if answer.status == 200:
                        return
            if api.returncode is not None:
                break
            await asyncio.sleep(0.1)
    raise StartRefused("the pages did not come up; run `tarsy-scoring api` by hand to see why")


@asynccontextmanager
async def program(
    command: str, env: Mapping[str, str], logs: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """
    Run a command of the service in a separate process; the output goes to `COMMAND.log`.

    At the end the process gets SIGTERM, and SIGKILL after `STOP_WITHIN_S` or a second signal.

    Args:
        env: All `SCORING_*` and `OPENAI_*` variables; those of this process are not inherited.
        logs: Directory of the log.
    """
    base_env = {k: v for k, v in os.environ.items() if not k.startswith(("SCORING_", "OPENAI_"))}
    with (logs / f"{command}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tarsy_scoring", command),
            env=base_env | dict(env),
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
                finally:  # also if a second signal cancels the wait
                    if process.returncode is None:
                        process.kill()
                        await process.wait()


async def _follow(
    console: Console,
    env: Mapping[str, str],
    sessions: list[dict[str, Any]],
    worker: asyncio.subprocess.Process,
    limit_s: float,
    stopping: asyncio.Event,
) -> dict[str, dict[str, Any]]:
    """
    Announce the sessions on Kafka, and print each score when the last event arrives.

    Ends when all have ended, after `limit_s`, or at `stopping`.

    Returns:
        The last event of each session that ended, by session id.

    Raises:
        StartRefused: The broker did not take the events, or the worker ended early.
    """
    settings = load_settings(env)
    ended: dict[str, dict[str, Any]] = {}
    tail, publisher = Tail(connection_options(settings), settings.topic_scoring_events), Publisher(settings)
    await tail.start()
    try:
        events = [(s["session_id"].encode(), _announcement(s), ()) for s in sessions]
        acknowledged = await publisher.publish(settings.topic_session_completed, events, PUBLISH_TIMEOUT_S)
        if not all(acknowledged):
            raise StartRefused("the broker did not take the events of the example sessions")
        deadline = time.monotonic() + limit_s
        with console.status("judging ..."):
            while len(ended) < len(sessions) and time.monotonic() < deadline and not stopping.is_set():
                if worker.returncode is not None:
                    raise StartRefused(
                        f"the worker ended early with status {worker.returncode}; run it by hand"
                    )
                for record in await tail.take(0.2):
                    event = from_json(record.value or b"{}")
                    if event["type"] in ("scoring.completed", "scoring.failed"):
                        ended[event["session_id"]] = event
                        console.print(_line(event))
    finally:
        await tail.stop()
        await publisher.stop()
    return ended


def _announcement(session: Mapping[str, Any]) -> bytes:
    """The `session-completed` event of a session."""
    names = ("session_id", "chain_id", "alert_type", "status", "completed_at")
    event = {name: session[name] for name in names} | {"labels": session.get("labels")}
    event |= {"event_id": f"demo-{session['session_id']}", "type": "session.completed"}
    return json.dumps(event).encode()


def _line(event: Mapping[str, Any]) -> str:
    """The line that shows the score of a session, or the failure."""
    if event["type"] == "scoring.failed":
        return f"     -     {event['session_id']:<36} {event['status']}: {event['error_kind']}"
    total, facts = event["total_score"], event["interaction"]
    return (
        f"  [bold]{total:3d}[/]/100  {event['judge_outcome'] or '':<8} {event['session_id']:<36} "
        f"outcome: {event['outcome'] or '-'}  commands: {facts['total_commands']} ({facts['error_count']} failed)  "
        f"{', '.join(event['flags'])}"
    ).rstrip()


def _summarise(console: Console, sessions: int, ended: Collection[Mapping[str, Any]]) -> int:
    """Print totals, tokens and cost. Returns the exit status: 0 if every session was scored, else 1."""
    scored = [event for event in ended if event["type"] == "scoring.completed"]
    totals = sorted(event["total_score"] for event in scored)
    console.print(f"\n{len(totals)} of {sessions} sessions scored")
    if totals:
        console.print(f"median {median(totals):g}, lowest {totals[0]}, highest {totals[-1]}")
    console.print(_tokens_and_cost([event["usage"] for event in scored]))
    return 0 if len(totals) == sessions else 1


def _tokens_and_cost(usages: Collection[Mapping[str, Any]]) -> str:
    tokens = sum((usage["input_tokens"] or 0) + (usage["output_tokens"] or 0) for usage in usages)
    costs = [usage["cost_usd"] for usage in usages if usage["cost_usd"] is not None]
    cost = f"{sum(costs):.4f} USD" if costs else "cost unknown (no prices are configured)"
    return f"{tokens} tokens, {cost}"
