"""
Measure this service beside the bare client and upstream's server: `python -m benchmarks.run`.

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
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peer import Peer
from benchmarks.programs import ProgramFailed
from benchmarks.report import Summary, as_json, print_table, summarize_rounds
from benchmarks.scenarios import Bench, Result, Scenario
from benchmarks.sessions import BODIES, CONTEXT_BYTES
from benchmarks.stored import stored
from benchmarks.tarsy import fill
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.postgres import migrate
from tarsy_scoring_lab.stack import Stack

REPORT_WIDTH = 150  # columns of the widest row


def scenarios(*, quick: bool, peer: bool, has_stored: bool = False) -> list[Scenario]:
    """
    All scenarios in order, the headline first; those that are compared follow each other.

    Args:
        has_stored: Each scenario of the service is followed by one over the scores of a filled directory.
    """
    slots, burst, slow = (50, 50, 150) if quick else (200, 300, 1600)
    loads = {"200ms": (0.2, slots, burst), "2s": (2.0, slots, slow), "5s": (5.0, burst, burst)}
    kinds = ("bare", "service", *(["peer"] if peer else []))
    found = []
    for label, load in loads.items():
        for kind in kinds:
            found.append(Scenario(f"{kind}-{label}", kind, *load))
            if has_stored and kind == "service":
                found.append(Scenario(f"{kind}-{label}-stored", kind, *load, is_stored=True))
    return found


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
        console.print("starting PostgreSQL and a broker ...")
        async with AsyncExitStack() as parts:
            stack = await parts.enter_async_context(Stack(broker=broker))
            filled = await parts.enter_async_context(stored(directory)) if directory else None
            console.print(f"  broker: {stack.broker} ({stack.broker_reason})", highlight=False)
            bench = Bench(stack, folder, peer, filled)
            await _prepare(bench, wanted)
            for _ in range(repeat):  # in turn, because the speed of a machine drifts
                rounds.append([])
                for scenario in wanted:
                    try:
                        rounds[-1].append(await _measure(bench, scenario, console))
                    except (ProgramFailed, TimeoutError) as error:
                        failures.append(f"{scenario.name}: {str(error) or 'took too long'}")
                        console.print(f"  {failures[-1]}", markup=False, highlight=False)
            about = {"version": version("tarsy-scoring"), "broker": stack.broker, "context_bytes": CONTEXT_BYTES}
    return summarize_rounds(rounds), about, failures


async def _prepare(bench: Bench, wanted: list[Scenario]) -> None:
    """Create the tables of both databases, and the sessions."""
    await asyncio.to_thread(migrate.migrate, bench.stack.env["SCORING_DATABASE_URL"])
    tarsy = bench.stack.env["SCORING_TIMELINE_DATABASE_URL"]
    await fill(tarsy, max(BODIES, *(s.scores for s in wanted)))
    if bench.peer and (scores := [s.scores for s in wanted if s.kind == "peer"]):
        await bench.peer.create_template(bench.stack.postgres.url, tarsy, max(scores), bench.folder)
    if any(s.kind == "bare" for s in wanted):
        await bench.write_conversations()


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
    everything = scenarios(quick=asked.quick, peer=peer is not None, has_stored=has_stored)
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


async def _until_signalled(measuring: Coroutine[Any, Any, Any]) -> Any:
    """Await `measuring`; SIGTERM cancels it as Ctrl-C does, and ends all programs that it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measuring


if __name__ == "__main__":
    sys.exit(main())
