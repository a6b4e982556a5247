"""
The laws of fitting: 100 generated sessions of 1 KB to 300 KB in windows of 2,000 to 200,000 tokens.

The sessions come from a seed and share a few bodies of text, which saves time.
"""

import functools
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sessions import NONCE, PLENTY, call, entry_text, event, execution, stage, timeline

from tarsy_scoring.errors import ContextTooLong
from tarsy_scoring.timeline.model import AvailableTool, Event, Timeline
from tarsy_scoring.timeline.render.context import FittedContext, build_context, estimate_tokens
from tarsy_scoring.timeline.render.fence import fence_lines, without_prefixes

SESSIONS_PER_SHAPE = 20
SMALLEST, LARGEST = 1_000, 300_000  # bytes of a session
FEWEST_TOKENS, MOST_TOKENS = 2_000, 200_000
MOST_EVENTS = 250

MARKER = re.compile(r"\n\[\.\.\. (\d+) characters not shown \.\.\.\]\n")
NOT_SHOWN = "\n## Not shown\n"

# --- texts -------------------------------------------------------------------------------------------------

_SENTENCE = (
    "the pod is restarting because its image cannot be pulled from the registry while requests wait for upstream "
    "timeouts and Deployment web-1 reports 3 unavailable replicas of 5 at 10:02:17 with code 503 in zone-b"
)


@functools.cache
def body(kind: str) -> str:
    """About a megabyte of text of this kind."""
    rng = random.Random(kind)
    if kind == "prose":
        piece = " ".join(rng.choices(_SENTENCE.split(), k=3_000)) + ".\n"
    elif kind == "hexadecimal":
        piece = "".join(f"{rng.randbytes(32).hex()}\n" for _ in range(300))
    else:
        piece = "".join(rng.choices("漢字復旧障害対応監視警告容器節点 \n", k=8_000))
    return piece * (1_000_000 // len(piece))


BODIES = ("prose", "hexadecimal", "other script")


def text_of(rng: random.Random, size: int) -> str:
    """A text of about that many bytes; never 30 to 80, where a marker is as long as the text it replaces."""
    kind = rng.choice(BODIES)
    characters = size // 3 if kind == "other script" else size
    if 30 < characters < 80:
        characters = 80
    source, start = body(kind), rng.randrange(1_000)
    while start + characters > len(source):
        source += source
    return source[start : start + characters]


# --- sessions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How the bytes of a session are distributed; the shares add up to about 1."""

    alert: float = 0.02
    analysis: float = 0.02
    arguments: float = 0.05
    results: float = 0.7
    reasoning: float = 0.2
    summaries: float = 0.0
    agents: int = 1
    stages: int = 1
    one_takes_most: bool = False


SHAPES = {
    "many calls": Shape(),
    "one giant result": Shape(results=0.95, reasoning=0.02, arguments=0.005, one_takes_most=True),
    "summaries": Shape(results=0.6, summaries=0.2, reasoning=0.1),
    "many stages and agents": Shape(stages=6, agents=5),
}


def session_of(shape: Shape, seed: str, size: int) -> Timeline:
    """A session of about `size` bytes; the same for the same seed."""
    rng = random.Random(seed)
    places = shape.stages * shape.agents
    count = max(1, min(MOST_EVENTS, size // 400) // places)  # of each agent
    agents = []
    for n in range(places):
        shares = [rng.random() + 0.01 for _ in range(count)]
        if shape.one_takes_most:
            shares[rng.randrange(count)] = 20.0 * count
        sizes = [share * size / places / sum(shares) for share in shares]
        agents.append(execution(*_events(shape, rng, sizes), name=f"agent-{n}", agent_index=n))
    of_stage = [agents[n :: shape.stages] for n in range(shape.stages)]
    stages = (stage(*found, name=f"part-{n}", stage_index=n) for n, found in enumerate(of_stage))
    return timeline(
        *stages,
        alert_data=text_of(rng, int(size * shape.alert)),
        final_analysis=f"It was the image: {text_of(rng, int(size * shape.analysis))}",
        executive_summary=text_of(rng, rng.choice((20, 300, 3_000))),
        runbook=text_of(rng, rng.choice((0, 20, 4_000))) or None,
        available_tools=tuple(AvailableTool("kubectl", f"get_{n}", "reads") for n in range(rng.randrange(12))),
    )


def _events(shape: Shape, rng: random.Random, sizes: list[float]) -> Iterator[Event]:
    for number, size in enumerate(sizes):
        yield event("llm_thinking", text_of(rng, int(size * shape.reasoning)) or "hm", number=number)
        if shape.results:
            arguments = f'{{"n": {number}, "of": "{text_of(rng, int(size * shape.arguments))}"}}'
            # With its full stop, no result looks as if the recorder had cut it.
            result = (text_of(rng, int(size * shape.results)) or "ok")[:-1] + "."
            yield call(result, number=number, name=f"get_{number % 7}", arguments=arguments)
            if shape.summaries:
                yield event("mcp_tool_summary", text_of(rng, int(size * shape.summaries)) or "ok")


# --- laws --------------------------------------------------------------------------------------------------


def calls_of(session: Timeline) -> list[tuple[str, str]]:
    events = (e for s in session.stages for x in s.executions for e in x.events)
    return [(f"Tool call {e.tool.name}", f"Arguments: {e.tool.arguments}\n") for e in events if e.tool]


def check_spans(fitted: FittedContext) -> list[tuple[str, str, str]]:
    """Id, heading and text of every entry, after checking that the spans are right and in order."""
    assert list(fitted.entries) == [f"E{n}" for n in range(1, len(fitted.entries) + 1)]
    found, position = [], 0
    for entry, (start, end) in fitted.entries.items():
        text = fitted.alert if entry == "E1" else fitted.conversation
        heading, _, rest = text[start:end].partition("\n")
        assert heading.startswith(f"[{entry}] ")
        assert text[start - 1] == "\n"
        assert rest == entry_text(fitted, entry)
        if entry not in ("E1", "E2"):
            assert start > position
        position = end
        found.append((entry, heading.removeprefix(f"[{entry}] "), without_prefixes(rest)))
    return found


def check_without_the_whole(session: Timeline, fitted: FittedContext, budget_tokens: int) -> None:
    """Check all laws that need no uncut context for comparison."""
    assert estimate_tokens(fitted.alert + fitted.conversation) == fitted.tokens <= budget_tokens
    entries = check_spans(fitted)
    # never dropped
    assert entries[0][2].rstrip("\n") == (session.alert_data.rstrip("\n") or "(the alert holds no data)")
    assert f"\n{session.final_analysis or '(the session holds none)'}" in without_prefixes(fitted.conversation)
    calls = [(heading, text) for _, heading, text in entries if heading.startswith("Tool call")]
    for (heading, text), (name, arguments) in zip(calls, calls_of(session), strict=True):
        assert heading == name
        assert text.startswith(arguments)
    for tool in session.available_tools:
        assert f"- kubectl.{tool.tool_name}: " in fitted.conversation
    # what was cut, and only that, is listed
    assert tuple(entry for entry, _, text in entries if MARKER.search(text)) == fitted.cut_entries
    assert ("context_shortened" in fitted.flags) == bool(fitted.cut_entries)
    closing = fitted.conversation.rpartition(NOT_SHOWN)[2]
    listed = f"Shortened to fit, beginning with the oldest: {', '.join(fitted.cut_entries)}."
    assert closing.startswith(listed if fitted.cut_entries else "Nothing was left out.")
    # coverage
    shown, removed = shown_and_removed(fitted)
    assert fitted.shown_share == pytest.approx(shown / (shown + removed), abs=1e-12)
    assert 0 < fitted.shown_share <= 1


def shown_and_removed(fitted: FittedContext) -> tuple[int, int]:
    """Characters of the session that the judge sees, and those that were removed."""
    begin, end = (len(line) + 1 for line in fence_lines(NONCE))
    shown = removed = 0
    texts = (fitted.alert[begin:-end], fitted.conversation[begin : fitted.conversation.rindex(NOT_SHOWN)])
    for quoted in map(without_prefixes, texts):
        markers = list(MARKER.finditer(quoted))
        shown += len(quoted) - sum(len(m[0]) for m in markers)
        removed += sum(int(m[1]) for m in markers)
    return shown, removed


def check_against_the_whole(session: Timeline, fitted: FittedContext) -> None:
    """Every entry is unchanged, or its head and tail with a marker that counts correctly."""
    whole = build_context(session, NONCE, PLENTY)
    assert whole.cut_entries == ()
    assert whole.shown_share == 1.0
    assert whole.entries.keys() == fitted.entries.keys()
    for entry in whole.entries:
        original, position = without_prefixes(entry_text(whole, entry) or ""), 0
        pieces = MARKER.split(without_prefixes(entry_text(fitted, entry) or ""))
        for shown, gone in zip(pieces[0::2], [*pieces[1::2], "0"], strict=True):
            assert original.startswith(shown, position)
            position += len(shown) + int(gone)
        assert position == len(original)
    assert sum(shown_and_removed(fitted)) == sum(shown_and_removed(whole))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_context_keeps_its_promises(name: str) -> None:
    """Within the budget, complete or cut as it says, and the same again; refused if too much is never dropped."""
    rng, shape = random.Random(name), SHAPES[name]
    cut = whole = 0
    for number in range(SESSIONS_PER_SHAPE):
        size = int(math.exp(rng.uniform(math.log(SMALLEST), math.log(LARGEST))))
        session = session_of(shape, f"{name} {number}", size)
        budget_tokens = int(math.exp(rng.uniform(math.log(FEWEST_TOKENS), math.log(MOST_TOKENS))))
        try:
            fitted = build_context(session, NONCE, budget_tokens)
        except ContextTooLong:
            continue
        check_without_the_whole(session, fitted, budget_tokens)
        check_against_the_whole(session, fitted)
        assert build_context(session, NONCE, budget_tokens) == fitted
        cut += bool(fitted.cut_entries)
        whole += not fitted.cut_entries
    assert min(cut, whole) > 0


def test_text_as_small_as_its_marker_is_cut_and_listed_or_neither() -> None:
    """Listing an entry costs tokens too: where that is more than the cut saves, the text stays."""
    cut = 0
    for characters in range(48, 72, 4):
        small = [call("a" * characters, number=n) for n in range(20)]
        session = timeline(stage(execution(*small, call("b" * 400, number=20))))
        whole = build_context(session, NONCE, PLENTY).tokens
        for budget_tokens in range(whole - 120, whole, 3):
            try:
                fitted = build_context(session, NONCE, budget_tokens)
            except ContextTooLong:
                continue
            check_without_the_whole(session, fitted, budget_tokens)
            cut += bool(fitted.cut_entries)

    assert cut > 10
