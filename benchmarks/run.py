"""
Measure this service beside the bare client, Faust and FastStream: `python -m benchmarks.run`.

PostgreSQL, the broker and the scripted judge are processes of their own on this machine.
"""

import argparse
import asyncio
import fnmatch
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peer import Peer
from benchmarks.programs import ProgramFailed
from benchmarks.report import Summary, as_json, print_table, summarize_rounds
from benchmarks.scenarios import Bench, Result, Scenario, Source
from benchmarks.sessions import BODIES, CONTEXT_BYTES, write_sessions
from benchmarks.stored import stored
from benchmarks.tarsy import fill
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.stack import Stack

T = TypeVar("T")

REPORT_WIDTH = 150  # columns of the widest row


def scenarios(*, quick: bool, peer: bool, processes: int = 1, has_stored: bool = False) -> list[Scenario]:
    """
    All scenarios in order, the headline first; those that are compared follow each other.

    Args:
        processes: With more than one, each scenario of the service is followed by one with so many processes.
        has_stored: Each scenario of the service is followed by one over the scores of a filled directory.
    """
    slots = 50 if quick else 200
    fast, slow = (4 * slots, 3 * slots) if quick else (10 * slots, 8 * slots)
    burst = 50 if quick else 300
    everything = [
        Scenario("bare-tarsy-200ms", "bare", 0.2, slots, burst, "tarsy-db"),
        Scenario("service-tarsy-200ms", "service", 0.2, slots, burst, "tarsy-db"),
        Scenario("peer-tarsy-200ms", "peer", 0.2, slots, burst, "tarsy-db"),
        Scenario("bare-tarsy-2s", "bare", 2.0, slots, slow, "tarsy-db"),
        Scenario("service-tarsy-2s", "service", 2.0, slots, slow, "tarsy-db"),
        Scenario("bare-tarsy-5s", "bare", 5.0, burst, burst, "tarsy-db"),
        Scenario("service-tarsy-5s", "service", 5.0, burst, burst, "tarsy-db"),
        Scenario("peer-tarsy-5s", "peer", 5.0, burst, burst, "tarsy-db"),
        Scenario("bare-0ms", "bare", 0.0, slots, fast),
        Scenario("service-plumbing", "plumbing", None, slots, fast),
        Scenario("service-0ms", "service", 0.0, slots, fast),
        Scenario("bare-200ms", "bare", 0.2, slots, fast),
        Scenario("service-200ms", "service", 0.2, slots, fast),
        Scenario("faust-200ms", "faust", 0.2, slots, fast),
        Scenario("faststream-200ms", "faststream", 0.2, slots, fast),
        Scenario("bare-2s", "bare", 2.0, slots, slow),
        Scenario("service-2s", "service", 2.0, slots, slow),
    ]
    if processes > 1:
        counts = {"service": (1, processes)}
        everything = [_with_processes(s, n) for s in everything for n in counts.get(s.kind, (1,))]
    if has_stored:
        over = {s: [replace(s, name=f"{s.name}-stored", is_stored=True)] for s in everything if s.kind == "service"}
        everything = [each for s in everything for each in (s, *over.get(s, []))]
    return [s for s in everything if peer or s.kind != "peer"]


def _with_processes(scenario: Scenario, processes: int) -> Scenario:
    if processes == 1:
        return scenario
    return replace(scenario, name=f"{scenario.name}-x{processes}", processes=processes)


async def measure_all(
    wanted: list[Scenario],
    broker: Literal["auto", "apache-kafka", "tansu"],
    repeat: int,
    peer: Peer | None,
    directory: Path | None,
    console: Console,
) -> tuple[list[Summary], dict[str, Any], list[str]]:
    """
    Measure the scenarios `repeat` times in turn; returns summaries, facts for the report, and failures.

    Args:
        directory: Filled by `benchmarks.stored`; None: no scenario needs it.

    Raises:
        StartRefused: PostgreSQL, broker or judge did not start.
    """
    rounds: list[list[Result]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-") as place:
        folder = Path(place)
        sessions = folder / "sessions"
        sessions.mkdir()
        console.print("writing sessions, starting PostgreSQL and a broker ...")
        async with AsyncExitStack() as parts:
            stack = await parts.enter_async_context(Stack(broker=broker))
            filled = (await parts.enter_async_context(stored(directory)))[0] if directory else None
            console.print(f"  broker: {stack.broker} ({stack.broker_reason})", highlight=False)
            bench = Bench(stack, folder, sessions, peer, filled)
            await _prepare(bench, wanted)
            for _ in range(repeat):  # in turn, because the speed of a machine drifts
                rounds.append([])
                for scenario in wanted:
                    try:
                        rounds[-1].append(await _measure(bench, scenario, console))
                    except (ProgramFailed, TimeoutError) as error:
                        failures.append(f"{scenario.name}: {str(error) or 'took too long'}")
                        console.print(f"  {failures[-1]}", markup=False, highlight=False)
            about = {
                "version": version("tarsy-scoring"),
                "date": datetime.now(UTC).date().isoformat(),
                "postgresql": await bench.postgres_version(),
                "broker": stack.broker,
                "context_bytes": CONTEXT_BYTES,
            }
    return summarize_rounds(rounds), about, failures


async def _prepare(bench: Bench, wanted: list[Scenario]) -> None:
    """Create the tables of both databases, and the sessions of the sources that are wanted."""
    await asyncio.to_thread(migrate.migrate, bench.stack.env["SCORING_DATABASE_URL"])
    counts = {source: max((s.scores for s in wanted if s.source == source), default=0) for source in get_args(Source)}
    if counts["files"]:
        await asyncio.to_thread(write_sessions, bench.sessions, max(counts["files"], BODIES))
    if counts["tarsy-db"]:
        await fill(bench.stack.env["SCORING_TIMELINE_DATABASE_URL"], max(counts["tarsy-db"], BODIES))
    if bench.peer and (scores := [s.scores for s in wanted if s.kind == "peer"]):
        await bench.peer.create_template(
            bench.stack.postgres.url, bench.stack.env["SCORING_TIMELINE_DATABASE_URL"], max(scores), bench.folder
        )
    for source in {s.source for s in wanted if s.kind == "bare"}:
        await bench.write_conversations(source)


async def _measure(bench: Bench, scenario: Scenario, console: Console) -> Result:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(scenario.name, total=scenario.scores)
        result = await bench.measure(scenario, lambda done: bar.update(task, completed=done))
    words = f"{result.rate:6.1f} scores/s  {1000 * result.cpu_s:5.2f} ms CPU per score"
    console.print(f"  {scenario.name:<20} {words}", highlight=False)
    return result


def main() -> int:
    """Exit status 0: all was measured; 1: a scenario or the start failed; 2: wrong usage; 130: cancelled."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds each: 50 slots, few scores, rough numbers")
    parser.add_argument(
        "--repeat",
        type=int,
        choices=range(1, 100),
        default=1,
        metavar="N",
        help="in turn, N times; shows medians and ranges",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--only", metavar="NAME,...", help="of these scenarios; patterns such as 'service-*' are fine")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="measure the worker also with N processes: service-*-xN"
    )
    parser.add_argument("--broker", choices=("auto", "apache-kafka", "tansu"), default="auto")
    parser.add_argument("--peer", type=Path, metavar="BINARY", help="upstream's server, measured beside the service")
    parser.add_argument("--peer-model", type=Path, metavar="BINARY", help="benchmarks/peer_model, built for it")
    parser.add_argument(
        "--stored", type=Path, metavar="DIRECTORY", help="measure the worker also over these scores: service-*-stored"
    )
    asked = parser.parse_args()
    if (asked.peer is None) != (asked.peer_model is None):
        parser.error("--peer and --peer-model need each other")
    for binary in filter(None, (asked.peer, asked.peer_model)):
        if not os.access(binary, os.X_OK) or binary.is_dir():
            parser.error(f"{binary} is not a program; docs/benchmarks.md says how to build it")
    peer = Peer(asked.peer.absolute(), asked.peer_model.absolute()) if asked.peer else None
    has_stored = asked.stored is not None
    everything = scenarios(quick=asked.quick, peer=peer is not None, processes=asked.processes, has_stored=has_stored)
    patterns = asked.only.split(",") if asked.only else ["*"]
    wanted = [s for s in everything if any(fnmatch.fnmatch(s.name, p) for p in patterns)]
    if not wanted:
        parser.error(f"--only: no scenario of that name (known: {', '.join(s.name for s in everything)})")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    console = Console()
    if not console.is_terminal:
        console.width = REPORT_WIDTH
    try:
        summaries, about, failures = asyncio.run(
            _until_signalled(measure_all(wanted, asked.broker, asked.repeat, peer, asked.stored, console))
        )
    except (StartRefused, FileNotFoundError) as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    print_table(console, summaries, about)
    if asked.json:
        asked.json.write_text(json.dumps(as_json(summaries, about), indent=2) + "\n", encoding="utf-8")
    return 1 if failures else 0


async def _until_signalled(measuring: Coroutine[Any, Any, T]) -> T:
    """Await `measuring`; SIGTERM cancels it as Ctrl-C does, and ends all programs that it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measuring


if __name__ == "__main__":
    sys.exit(main())
