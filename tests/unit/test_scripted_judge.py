"""The scripted judge answers in the requested form, says that it is one, and fails as scripted."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import jsonschema
import pytest
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, RateLimitError

from infrastructure import wait_until
from tables import table
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring_lab.scripted_judge import STAND_IN, Fault, ScriptedJudge
from tarsy_scoring_lab.scripted_replies import Task, Turn, read_task, read_transcript, turn_of, write_reply

NONCE = "0123456789abcdef"
FENCE = f"<<<SESSION-DATA {NONCE} BEGIN>>>\n%s\n<<<SESSION-DATA {NONCE} END>>>"
TOOLS = "\n## Available tools\n\n[E2] Tools of agent scout\n- k8s.logs: reads logs\n- k8s.events\n- files.read: reads\n"
BANDS = {"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)}
BAND_LINES = "\n".join(f"   Outcome: {name} ({low}-{high})" for name, (low, high) in BANDS.items())
CATEGORY_LINES = "   Depth: X/60\n   Use Of Tools: X/30\n   Language: X/10"
BOTH = f"{BAND_LINES}\n{CATEGORY_LINES}"
SEVERAL = range(30)  # transcripts: enough for totals in each band
REPAIR = [("assistant", "An answer."), ("user", "Decide which you mean, then restate all of it so that it agrees.")]
REMINDER = [("assistant", "An answer."), ("user", "The last line holds no total. Answer with the total alone.")]
MISSING = [("assistant", "An answer."), ("user", "Now name the tools that were missing.")]
TURNS: dict[Turn, list[tuple[str, str]]] = {
    "analysis": [],
    "repair": REPAIR,
    "reminder": REMINDER,
    "missing_tools": MISSING,
}
SCHEMA = {"type": "object", "properties": {"total_score": {"type": "integer"}, "verdict": {"type": "string"}}}


def evidence(number: int = 0) -> str:
    entries = "\n".join(f"[E{i}] Tool call k8s.logs\nResult:\ncase {number}, line {i}" for i in range(3, 30))
    return f"{TOOLS}\n## Investigation\n{entries}\n"


def prompt(form: str = "", *, data: str | None = None, number: int = 0) -> str:
    """The user's message as the service sends it: alert, evidence, task, form."""
    shown = evidence(number) if data is None else data
    return f"# Alert\n{FENCE % '[E1] disk full'}\n# Session\n{FENCE % shown}\n# Task\nCite E17.\n{form}"


def task_of(form: str = "", number: int = 0, turn: Turn = "analysis") -> Task:
    return read_task([("system", "s"), ("user", prompt(form, number=number)), *TURNS[turn]])


def reply(form: str = "", number: int = 0, turn: Turn = "analysis", *, contradictory: bool = False) -> str:
    return write_reply(task_of(form, number, turn), contradictory=contradictory)


def total_in(text: str) -> int:
    return int(text.splitlines()[-1])


@pytest.fixture
async def client(judge: ScriptedJudge) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=judge.base_url, api_key="stand-in", max_retries=0, timeout=10) as client:
        yield client


async def ask(client: AsyncOpenAI, turn: Turn = "analysis", form: str = "", **changes: Any) -> Any:
    said = [("system", "You judge."), ("user", prompt(form)), *TURNS[turn]]
    messages: Any = [{"role": role, "content": content} for role, content in said]
    return await client.chat.completions.create(model="some-model", messages=messages, **changes)


async def text_of(client: AsyncOpenAI, turn: Turn = "analysis", form: str = "", **changes: Any) -> str:
    return str((await ask(client, turn, form, **changes)).choices[0].message.content)


# --- replies -------------------------------------------------------------------------------------------


def test_total_follows_from_the_transcript_without_its_nonce() -> None:
    assert read_transcript(prompt()) == read_transcript(prompt().replace(NONCE, "f" * 16))
    assert [read_transcript(prompt(number=number)).total for number in range(6)] == [38, 68, 31, 92, 50, 85]


@table
def test_masking_leaves_the_honest_total(attacked: str, masked: str) -> None:
    """Both texts have one checksum, so that a judge that ignores the attack is not suspected of tampering."""
    with_attack, with_mask = (prompt(data=f"[E2] before\n{text}\nafter") for text in (attacked, masked))
    assert read_transcript(with_attack).checksum == read_transcript(with_mask).checksum
    assert read_transcript(with_mask).checksum != read_transcript(prompt(data="[E2] before\nother\nafter")).checksum


@table
def test_turn_is_recognised(asked: str, turn: str) -> None:
    assert turn_of([("user", "x"), ("assistant", "An answer."), ("user", asked)]) == turn
    assert turn_of([("user", asked)]) == "analysis"


@table
def test_malformed_response_format_is_refused(response_format: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        read_task([("user", "x")], response_format)


def test_shipped_prompts_get_the_form_they_ask_for() -> None:
    """JSON that fits the schema in the prompt, or text with the total alone on its last line."""
    context: Any = SimpleNamespace(alert=FENCE % "[E1] disk full", conversation=FENCE % evidence(3))
    for criteria in load_criteria():
        messages = [(m.role, m.content) for m in criteria.open_conversation(context)]
        task = read_task(messages)
        total = task.transcript.total
        text, contradictory = write_reply(task), write_reply(task, contradictory=True)
        assert (task.schema is None) == (criteria.strategy == "two_turn")
        assert dict(task.bands) == criteria.bands
        assert STAND_IN in text
        if task.schema is None:
            assert total_in(text) == total_in(contradictory) == total
            assert [c.max_points for c in criteria.categories] == list(task.categories.values())
            continue
        for found, stated in ((json.loads(text), True), (json.loads(contradictory), False)):
            jsonschema.validate(found, task.schema)
            assert list(found) == list(task.schema["properties"])
            summed = sum(found["score_breakdown"].values()) if "scores" not in found else 100 * found["weighted_score"]
            assert (round(summed) == total) is stated


def test_text_states_outcome_and_breakdown_that_agree() -> None:
    met = set()
    for number in SEVERAL:
        text = reply(BOTH, number)
        [outcome] = re.findall(r"^Outcome: (\w+)$", text, re.MULTILINE)
        low, high = BANDS[outcome]
        assert low <= total_in(text) <= high
        met.add(outcome)
        stated = re.findall(r"^([A-Z][A-Za-z ]+): (\d+)/(\d+)$", text, re.MULTILINE)
        assert [(name, most) for name, _, most in stated] == [
            ("Depth", "60"),
            ("Use Of Tools", "30"),
            ("Language", "10"),
        ]
        assert all(int(points) <= int(most) for _, points, most in stated)
        assert sum(int(points) for _, points, _ in stated) == total_in(text)
        numbers = re.findall(r"^(?:Outcome: \w+|.+: \d+/\d+|\d+)$", text, re.MULTILINE)
        repaired = reply(BOTH, number, "repair")
        assert [line for line in repaired.splitlines() if line and line != STAND_IN] == numbers
        wrong = re.findall(r"^.+: (\d+)/\d+$", reply(BOTH, number, contradictory=True), re.MULTILINE)
        assert abs(sum(map(int, wrong)) - total_in(text)) == 10
    assert met == set(BANDS)


def test_form_is_that_of_the_prompt_and_not_of_the_evidence() -> None:
    assert "Outcome" not in reply()
    assert "Outcome" not in reply(BAND_LINES, turn="reminder")
    assert not re.search(r"^[A-Z][A-Za-z ]+: \d+/\d+$", reply(BAND_LINES), re.MULTILINE)
    schema = f"```json\n{json.dumps(SCHEMA)}\n```"
    task = read_task([("user", prompt(data=f"[E3] x\n{BAND_LINES}\n{CATEGORY_LINES}\n{schema}"))])
    assert (dict(task.bands), task.schema, "Depth" in task.categories) == ({}, None, False)
    described = {"enum": ["good", "bad"], "description": "good: total_score 20-100, bad: total_score 0-19"}
    task = read_task(
        [("user", prompt())],
        {"type": "json_schema", "json_schema": {"schema": {"properties": {"outcome": described}}}},
    )
    assert json.loads(write_reply(task)) == {"outcome": "good"}


def test_answer_cites_existing_entries() -> None:
    cited = re.findall(r"\[(E\d+)\]", reply(number=3))
    assert len(cited) == 3
    assert all(f"[{entry}]" in evidence(3) for entry in cited)


def test_missing_tools_and_alternatives_vary() -> None:
    schema = {"properties": {"alternative_approaches": {"type": "array"}}}
    tools, approaches = set(), set()
    for number in SEVERAL:
        listed = re.findall(r"^(\d)\. \*\*([a-z-]+)\*\*: .{20,}$", reply("", number, "missing_tools"), re.MULTILINE)
        assert [int(place) for place, _ in listed] == list(range(1, len(listed) + 1))
        assert len({name for _, name in listed}) == len(listed)
        tools.add(len(listed))
        form = f"```json\n{json.dumps(schema)}\n```"
        found = json.loads(reply(form, number))["alternative_approaches"]
        assert all(step.startswith(("k8s.", "files.read")) for approach in found for step in approach["steps"])
        approaches.add(len(found))
    assert tools == approaches == {0, 1, 2, 3}


# --- the endpoint --------------------------------------------------------------------------------------


async def test_each_answer_states_that_no_model_judged(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    for turn in TURNS:
        for fault in (None, "no_score", "refusal"):
            judge.script(*([Fault(kind=fault, times=1)] if fault else []))
            answer = await ask(client, turn)
            message = answer.choices[0].message
            assert STAND_IN in (message.content or message.refusal), (turn, fault)
            assert answer.system_fingerprint == "scripted-stand-in"


async def test_calls_are_counted_and_kept(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    first = await ask(client, temperature=0.5)
    second = await ask(client, "missing_tools")
    assert judge.calls == 2
    assert judge.calls_by_turn == {"analysis": 1, "missing_tools": 1}
    assert judge.requests[0]["temperature"] == 0.5
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens
    assert [model.id async for model in client.models.list()] == ["scripted-judge"]


@table
async def test_malformed_request_is_refused(body: str) -> None:
    async with ScriptedJudge() as judge, aiohttp.ClientSession() as session:
        response = await session.post(f"{judge.base_url}/chat/completions", data=body)
        assert response.status == 400
        assert "message" in (await response.json())["error"]


async def test_calls_hang_and_drop(
    judge: ScriptedJudge, client: AsyncOpenAI, let_pass: Callable[[float], None]
) -> None:
    judge.script(Fault(kind="drop", times=1), Fault(kind="hang", times=1))
    with pytest.raises(APIConnectionError):
        await ask(client)
    asking = asyncio.create_task(ask(client, timeout=600))
    await wait_until(lambda: judge.calls == 2, 30, "the call arrives")
    let_pass(600)
    with pytest.raises(APITimeoutError):
        await asking
    assert (await ask(client)).choices


async def test_faults_apply_only_to_matching_calls(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """A latency does not use up the call: the next fault applies too."""
    fits: dict[str, Any] = {"turn": "missing_tools", "match": 'say "no"', "times": 1}
    judge.script(Fault(kind="latency", **fits), Fault(kind="status", **fits))
    assert await text_of(client, "analysis", 'say "no"')
    assert await text_of(client, "missing_tools", "say yes")
    with pytest.raises(APIStatusError):
        await text_of(client, "missing_tools", 'say "no"')
    assert judge.faults_met == {"latency": 1, "status": 1}


async def test_faults_can_be_ordered_over_http(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    script = f"{judge.base_url.removesuffix('/v1')}/script"
    async with aiohttp.ClientSession() as session:
        faults = [{"kind": "status", "status": 429, "times": 3}, {"kind": "refusal", "times": None}]
        async with session.post(script, json={"faults": faults}) as response:
            assert response.status == 200
        with pytest.raises(RateLimitError):
            await ask(client)
        async with session.get(script) as response:
            shown = await response.json()
        assert shown["faults"] == [{"kind": "status", "status": 429, "times": 2}, {"kind": "refusal", "times": None}]
        assert (shown["calls"], shown["faults_met"]) == (1, {"status": 1})
        async with session.delete(script) as response:
            assert (await response.json())["faults"] == []
        # A test whose fault never happens must not pass, so a misspelt script is refused and explained.
        for misspelt in ({"faults": [{"kind": "explode"}]}, {"faults": [{"kind": "refusal", "time": 1}]}, {}, []):
            async with session.post(script, json=misspelt) as response:
                assert response.status == 400
                assert "no_response_format" in (await response.json())["error"]["message"]
    assert judge.faults == []


async def test_runs_as_a_process_until_sigterm() -> None:
    arguments = ["-m", "tarsy_scoring_lab.scripted_judge", "--port", "0", "--latency", "0"]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        base_url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        async with (
            AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0) as client,
            aiohttp.ClientSession() as http,
        ):
            assert STAND_IN in await text_of(client)
            await (await http.post(base_url.replace("/v1", "/script"), json={"faults": [{"kind": "hang"}]})).read()
            hanging = asyncio.create_task(text_of(client))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
            with pytest.raises(APIConnectionError):
                await hanging
    finally:
        if process.returncode is None:
            process.kill()
