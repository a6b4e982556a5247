"""The arithmetic of the benchmark: windows over completions, and CPU between two moments."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from benchmarks import results, run
from benchmarks.http_load import Latencies, medians, summarize
from benchmarks.meter import Meter, Window, steady_window, whole_window
from benchmarks.report import Spread, as_json, ratio_to_bare, summarize_rounds, targets
from benchmarks.scenarios import Result, Scenario, Source
from benchmarks.sessions import CALLS, CONTEXT_BYTES, make_session
from benchmarks.stored import Stored
from benchmarks.tarsy import EVENTS, make_tarsy_session

from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import build_context


def result(
    kind: str,
    latency_s: float,
    rate: float,
    *,
    slots: int = 200,
    peak_rss: int = 100 * 2**20,
    source: Source = "files",
) -> Result:
    """A measured scenario that completed `rate` scores in its one second."""
    window = Window(0.0, 1.0, int(rate))
    return Result(
        scenario=Scenario(f"{kind}-{latency_s:g}", kind, latency_s, slots, 1000, source),
        completed=int(rate),
        whole=window,
        steady=window,
        cpu_s=0.009,
        steady_cpu_s=0.009,
        peak_rss=peak_rss,
        judge_calls=2 * int(rate),
        others_cpu_s={"database": 0.003} if kind == "service" else {},
        bystanders_share=0.0,
    )


@pytest.mark.parametrize("spread_s", [0.0, 0.9], ids=["in step", "spread"])
def test_slots_that_all_work_reach_the_ideal(spread_s: float) -> None:
    completions = [4.0 * turn + spread_s * slot / 10 for turn in range(1, 7) for slot in range(10)]
    window = steady_window(completions, slots=10)
    assert window is not None
    assert window.scores == 40
    assert window.rate == pytest.approx(2.5)


def test_two_rounds_have_no_steady_part() -> None:
    assert steady_window([1.0] * 10 + [2.0] * 19, slots=10) is None


def test_the_whole_window_begins_with_the_first_claim() -> None:
    assert whole_window(10.0, [12.0, 20.0, 11.0]) == Window(10.0, 20.0, 3)


@pytest.mark.parametrize(
    ("since", "until", "used"),
    [(0.0, 2.0, 3.0), (0.5, 1.5, 1.5), (-5.0, 9.0, 3.0)],
    ids=["between samples", "within two samples", "beyond the samples"],
)
def test_cpu_between_two_moments_is_interpolated(since: float, until: float, used: float) -> None:
    meter = Meter({"measured": 1}, times=[0.0, 1.0, 2.0], cpu_s={"measured": [0.0, 1.0, 3.0]})
    assert meter.used_s("measured", since, until) == pytest.approx(used)


CHILD = """
import os, sys, time
def burn():
    started = time.process_time()
    while time.process_time() - started < 0.3:
        pass
pid = os.fork()
if pid == 0:
    burn()
    os._exit(0)
os.waitpid(pid, 0)
print("ended", flush=True)
sys.stdin.read()
"""


def test_a_child_that_has_ended_counts_with_its_process() -> None:
    """Connections of PostgreSQL may end between two samples."""
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline()
        meter = Meter({"measured": parent.pid})
        meter.sample()
        parent.communicate()
    meter.sample()
    assert meter.cpu_s["measured"][0] > 0.2  # the kernel counts in ticks of 10 ms
    assert meter.cpu_s["measured"][1] == meter.cpu_s["measured"][0]


def test_rounds_of_requests_become_medians_with_every_failure() -> None:
    rounds = [Latencies(100, {"503": n}, 10 * n, float(n), 2.0 * n, 3.0 * n, 4.0 * n) for n in (1, 9, 2)]
    assert medians(rounds) == Latencies(300, {"503": 12}, 90, 2.0, 4.0, 6.0, 36.0)


def test_the_service_is_compared_with_the_bare_client_under_equal_load() -> None:
    service = result("service", 0.2, 180)
    others: Sequence[Result] = [
        result("bare", 2.0, 50),
        result("bare", 0.2, 90, slots=50),
        result("bare", 0.2, 60, source="tarsy-db"),
    ]
    assert ratio_to_bare(service, [service, *others]) is None
    assert ratio_to_bare(service, [service, *others, result("bare", 0.2, 240)]) == pytest.approx(0.75)


def test_a_ratio_is_the_median_of_the_ratios_of_pairs() -> None:
    """The speed of the machine drifts, and a round may lack one of the pair."""
    rounds = [
        [result("bare", 0.2, 100), result("service", 0.2, 50)],
        [result("bare", 0.2, 10), result("service", 0.2, 8)],
        [result("bare", 0.2, 1000), result("service", 0.2, 600)],
        [result("service", 0.2, 1)],
    ]
    bare, service = summarize_rounds(rounds)
    assert service.ratio_to_bare == Spread(0.6, 0.5, 0.8)
    assert bare.ratio_to_bare is None
    assert service.spread(lambda r: r.rate) == Spread(29.0, 1.0, 600.0)
    assert [len(s.runs) for s in (bare, service)] == [3, 4]


def test_a_missed_target_is_reported() -> None:
    slow = [result("bare", 0.2, 200), result("service", 0.2, 129), result("service", 2.0, 49, peak_rss=301 * 2**20)]
    assert {name: t["is_met"] for name, t in targets(summarize_rounds([slow])).items()} == {
        "service-0.2: ratio to bare": False,
        "service-0.2: peak bytes": True,
        "service-2: share of ideal": True,
        "service-2: peak bytes": False,
    }
    from_tarsy = [result("bare", 0.2, 200, source="tarsy-db"), result("service", 0.2, 80, source="tarsy-db")]
    assert {name: t["is_met"] for name, t in targets(summarize_rounds([from_tarsy])).items()} == {
        "service-0.2: ratio to bare": True,
        "service-0.2: worker CPU s": False,
        "service-0.2: PostgreSQL CPU s": True,
        "service-0.2: peak bytes": True,
    }
    assert targets(summarize_rounds([[result("service", 2.0, 1, slots=50)]])) == {}


def test_sessions_have_the_stated_size() -> None:
    session = make_session("bench", 1)
    events = session["stages"][0]["executions"][0]["events"]
    context = build_context(parse_session(session), "0123456789abcdef", 100_000)
    assert sum(e["event_type"] == "llm_tool_call" for e in events) == CALLS
    assert len(context.conversation) == pytest.approx(CONTEXT_BYTES, rel=0.1)
    assert not context.flags
    assert session == make_session("bench", 1)


def test_sessions_of_tarsy_have_the_stated_size() -> None:
    session = make_tarsy_session("bench", 1)
    events = [e for stage in session["stages"] for x in stage["executions"] for e in x["events"]]
    context = build_context(parse_session(session), "0123456789abcdef", 100_000)
    assert len(events) == len({e["event_id"] for e in events}) == EVENTS
    assert sum(len(e["content"]) for e in events) == pytest.approx(98_000, rel=0.03)
    assert not context.flags


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "absent", "--peer-model", sys.executable], "absent is not a program"),
        (["--peer", sys.executable], "need each other"),
        (["--only", "peer-*"], "no scenario of that name"),
    ],
    ids=["no such binary", "without its model", "not given"],
)
def test_a_peer_that_cannot_run_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.run", *arguments])
    with pytest.raises(SystemExit, match="2"):
        run.main()
    assert message in capsys.readouterr().err


def test_percentiles_are_latencies_of_measured_requests() -> None:
    found = summarize([0.001] * 99 + [0.5], failed={"503": 2, "TimeoutError": 1}, answer_bytes=10)
    assert (found.p50_ms, found.p95_ms, found.p99_ms, found.max_ms) == (1.0, 1.0, 500.0, 500.0)
    assert (found.requests, found.failed) == (103, {"503": 2, "TimeoutError": 1})


def test_the_page_holds_the_results_of_each_release() -> None:
    """`python -m benchmarks.results` writes it."""
    files = {path.name: path.read_text("utf-8") for path in results.RESULTS.glob("*.json")}
    assert files
    on_disk = results.PAGE.read_text("utf-8")
    assert results.page(on_disk, files) == on_disk
    for name, content in files.items():
        assert not re.search(r"/(home|root|tmp|work)/|host", content), name


def test_the_newest_release_comes_first_and_a_missing_value_is_empty() -> None:
    about = {"date": "2026-01-02", "postgresql": "18.4", "broker": "tansu"}
    measured = as_json(summarize_rounds([[result("bare", 0.2, 100)], [result("bare", 0.2, 90)]]), about)
    written = results.page(
        f"a\n{results.BEGIN}{results.END}\nb", dict.fromkeys(("0.9.0.json", "0.10.0.json"), json.dumps(measured))
    )
    assert written.index("**0.10.0**, 2026-01-02:") < written.index("**0.9.0**")
    assert "| `bare-0.2` | 2 | 95.0 (90.0-100.0) | 0.19 (0.18-0.20) |  | 9.0 |  | 100 |  |  | 0 |" in written


def test_each_fifth_stored_score_is_a_second_one_of_its_session() -> None:
    assert [Stored(n, chains=1, text_chars=1, event_days=1).sessions for n in (1, 4, 5, 6, 10)] == [1, 4, 4, 5, 8]
