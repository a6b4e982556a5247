"""The scripted judge is deterministic, honest about being none, and goes wrong exactly as ordered."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, RateLimitError

from tarsy_scoring.embedded.scripted_judge import Fault, ScriptedJudge, Turn, read_transcript

BEGIN, END = "<<<SESSION-DATA {} BEGIN>>>", "<<<SESSION-DATA {} END>>>"
FOLLOW_UP = "Now name the tools that were missing."
REMINDER = "The last line holds no total. Answer with the total alone."

Messages = list[dict[str, str]]


def transcript(text: str = "the pod was out of memory", nonce: str = "0123456789abcdef") -> str:
    entries = "\n".join(f"[E{i}] kubectl.logs: {text}, line {i}" for i in range(100, 140))
    return f"Cite ids such as E17.\n{BEGIN.format(nonce)}\n{entries}\n{END.format(nonce)}\nNow judge it. Cite E18."


def conversation(turn: Turn, text: str = "the pod was out of memory") -> Messages:
    """The messages of one turn as the service sends them."""
    messages = [{"role": "system", "content": "You judge."}, {"role": "user", "content": transcript(text)}]
    if turn == "analysis":
        return messages
    asked = FOLLOW_UP if turn == "missing_tools" else REMINDER
    return [*messages, {"role": "assistant", "content": "An analysis."}, {"role": "user", "content": asked}]


@pytest.fixture
async def client(judge: ScriptedJudge) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=judge.base_url, api_key="stand-in", max_retries=0, timeout=10) as client:
        yield client


async def ask(client: AsyncOpenAI, turn: Turn = "analysis", **changes: Any) -> Any:
    messages: Any = changes.pop("messages", None) or conversation(turn)
    return await client.chat.completions.create(model="some-model", messages=messages, **changes)


async def text_of(client: AsyncOpenAI, turn: Turn = "analysis", text: str = "the pod was out of memory") -> str:
    answer = await ask(client, messages=conversation(turn, text))
    return str(answer.choices[0].message.content)


# --- answers -------------------------------------------------------------------------------------------


async def test_same_transcript_same_answer(client: AsyncOpenAI) -> None:
    """Nothing but the transcript decides: not time, not order, not another process."""
    assert await text_of(client) == await text_of(client)
    async with ScriptedJudge() as other:
        assert await text_of(AsyncOpenAI(base_url=other.base_url, api_key="k")) == await text_of(client)


async def test_other_transcripts_get_other_totals(client: AsyncOpenAI) -> None:
    """Totals spread over 20 to 95, so that lists and pictures show something."""
    totals = {int((await text_of(client, text=f"case {i}")).splitlines()[-1]) for i in range(60)}
    assert len(totals) > 20
    assert min(totals) >= 20
    assert max(totals) <= 95


def test_nonce_changes_nothing() -> None:
    """Two scorings of one session differ by the fence's nonce alone and agree."""
    assert read_transcript(transcript(nonce="0123456789abcdef")) == read_transcript(transcript(nonce="f" * 16))


async def test_analysis_has_the_form_of_an_evaluation(client: AsyncOpenAI) -> None:
    """At least 200 words, four categories that add up, the total alone on the last line."""
    for i in range(30):
        answer = await text_of(client, text=f"case {i}")
        points = [int(p) for p in re.findall(r"^[A-Z][A-Za-z ]+: (\d+)/25$", answer, re.MULTILINE)]
        assert len(answer.split()) >= 200
        assert len(points) == 4
        assert max(points) <= 25
        assert sum(points) == int(answer.splitlines()[-1])


async def test_cites_entries_of_the_transcript_only(client: AsyncOpenAI) -> None:
    """Ids that the instructions give as examples are not evidence."""
    cited = re.findall(r"\bE(\d+)\b", await text_of(client))
    assert len(cited) >= 2
    assert all(100 <= int(number) < 140 for number in cited)


async def test_missing_tools_are_a_numbered_list(client: AsyncOpenAI) -> None:
    """Between none, said in the agreed words, and three."""
    counts = set()
    for i in range(40):
        answer = await text_of(client, "missing_tools", text=f"case {i}")
        listed = re.findall(r"^(\d)\. \*\*([a-z-]+)\*\*: .{20,}$", answer, re.MULTILINE)
        assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
        assert len({name for _, name in listed}) == len(listed)
        assert ("No critical missing tools identified." in answer) is (not listed)
        counts.add(len(listed))
    assert counts == {0, 1, 2, 3}


async def test_reminder_is_answered_by_the_total(client: AsyncOpenAI) -> None:
    """The same total as the analysis of the same transcript, alone on the last line; and it says who answers."""
    reminded = await text_of(client, "reminder")

    assert reminded.splitlines()[-1] == (await text_of(client)).splitlines()[-1]
    assert "stand-in" in reminded


@pytest.mark.parametrize("turn", ["analysis", "missing_tools"])
@pytest.mark.parametrize("fault", ["none", "cut", "no_score", "refusal"])
async def test_every_text_says_that_nobody_judged(
    judge: ScriptedJudge, client: AsyncOpenAI, turn: Turn, fault: Any
) -> None:
    """Nobody can take a stand-in's text for a judgement, whatever became of it."""
    if fault != "none":
        judge.script(Fault(kind=fault))
    answer = await ask(client, turn)
    message = answer.choices[0].message
    said = message.content or message.refusal
    assert "stand-in" in said
    if fault != "cut":
        assert "no model read or judged this investigation" in said
    assert answer.system_fingerprint == "scripted-stand-in"


async def test_second_turn_finds_the_first_in_the_cache(client: AsyncOpenAI) -> None:
    """Cached tokens come in steps of 128 from 1,024 on, and only for a prefix that was sent before."""
    long = "x" * 200
    first = await ask(client, messages=conversation("analysis", long))
    second = await ask(client, messages=conversation("missing_tools", long))
    short = [await ask(client, messages=[{"role": "user", "content": "brief"}]) for _ in range(2)]

    assert first.usage.prompt_tokens_details.cached_tokens == 0
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached % 128 == 0
    assert first.usage.prompt_tokens - 128 < cached <= first.usage.prompt_tokens
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens
    assert short[1].usage.prompt_tokens_details.cached_tokens == 0


async def test_requests_are_counted_and_kept(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """A test can look at what was sent, byte for byte."""
    await ask(client, temperature=0.5)
    await ask(client, "missing_tools")
    assert judge.calls == 2
    assert judge.calls_by_turn == {"analysis": 1, "missing_tools": 1}
    assert judge.requests[0]["messages"] == conversation("analysis")
    assert judge.requests[0]["temperature"] == 0.5


async def test_keeps_the_last_requests_only() -> None:
    """A benchmark does not fill the memory."""
    async with ScriptedJudge(record=2) as judge, AsyncOpenAI(base_url=judge.base_url, api_key="k") as client:
        for i in range(4):
            await text_of(client, text=f"case {i}")
        assert [r["messages"][1]["content"] for r in judge.requests] == [transcript("case 2"), transcript("case 3")]


async def test_lists_its_model(client: AsyncOpenAI) -> None:
    """A check of the endpoint before the first score finds a model."""
    assert [model.id async for model in client.models.list()] == ["scripted-judge"]


@pytest.mark.parametrize(
    "body",
    [b"not JSON", b"{}", b'{"messages": [{"role": "system", "content": "alone"}]}'],
    ids=["not-json", "no-messages", "no-user"],
)
async def test_malformed_request_is_refused(judge: ScriptedJudge, body: bytes) -> None:
    """A mistake of the service is a 400 with OpenAI's error object, never an answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{judge.base_url}/chat/completions", data=body) as response,
    ):
        assert response.status == 400
        assert "message" in (await response.json())["error"]


# --- faults --------------------------------------------------------------------------------------------


async def test_status_comes_with_headers_and_body(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """A rate limit with its Retry-After, for as many calls as ordered and no more."""
    error = {"error": {"message": "slow down", "code": "rate_limit_exceeded", "type": "requests", "param": None}}
    judge.script(Fault(kind="status", status=429, headers={"retry-after": "2"}, json=error, times=2))
    for _ in range(2):
        with pytest.raises(RateLimitError) as caught:
            await ask(client)
        assert caught.value.response.headers["retry-after"] == "2"
        assert caught.value.code == "rate_limit_exceeded"
    assert (await ask(client)).choices
    assert judge.faults == []


async def test_body_is_sent_as_ordered(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """Whatever an endpoint may say can be said."""
    judge.script(Fault(kind="body", status=400, json={"error": {"code": "context_length_exceeded", "message": "m"}}))
    with pytest.raises(APIStatusError) as caught:
        await ask(client)
    assert (caught.value.status_code, caught.value.code) == (400, "context_length_exceeded")


SPOILT: dict[str, Any] = {
    "cut": lambda a: (a.choices[0].finish_reason, "/25" in a.choices[0].message.content) == ("length", False),
    "no_score": lambda a: not re.search(r"\d", a.choices[0].message.content),
    "refusal": lambda a: a.choices[0].message.content is None and "refuse" in a.choices[0].message.refusal,
    "content_filter": lambda a: (a.choices[0].finish_reason, a.choices[0].message.content) == ("content_filter", ""),
    "empty": lambda a: (a.choices[0].finish_reason, a.choices[0].message.content) == ("stop", ""),
    "error_body": lambda a: a.choices is None and "message" in a.model_extra["error"],
    "no_choices": lambda a: a.choices == [],
    "no_usage": lambda a: a.usage is None and a.choices[0].message.content,
    "tool_calls": lambda a: a.choices[0].finish_reason == "tool_calls" and a.choices[0].message.tool_calls,
    "served_model": lambda a: a.model == "another-model",
    "reply": lambda a: a.choices[0].message.content == "",
}


@pytest.mark.parametrize("kind", SPOILT)
async def test_answer_is_spoilt_once(judge: ScriptedJudge, client: AsyncOpenAI, kind: Any) -> None:
    """The ordered call is spoilt as its name says; the next one is whole."""
    judge.script(Fault(kind=kind, times=1))
    assert SPOILT[kind](await ask(client))
    whole = await ask(client)
    assert (whole.model, whole.choices[0].finish_reason) == ("some-model", "stop")
    assert whole.choices[0].message.content.splitlines()[-1].isdigit()
    assert whole.usage.prompt_tokens > 0


async def test_reply_is_verbatim(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """Every shape of an answer can be tried."""
    judge.script(Fault(kind="reply", content="**85/100**\n\u200b"))
    assert await text_of(client) == "**85/100**\n\u200b"


async def test_hanging_call_ends_with_its_client(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """No answer comes; the client's own deadline is what ends it, and the next call is served."""
    judge.script(Fault(kind="hang", times=1))
    with pytest.raises(APITimeoutError):
        await ask(client, timeout=0.2)
    assert (await ask(client)).choices


async def test_dropped_connection_is_no_answer(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """Half a body arrives, then nothing."""
    judge.script(Fault(kind="drop", times=1))
    with pytest.raises(APIConnectionError):
        await ask(client)
    assert (await ask(client)).choices


async def test_latency_delays_the_answer_and_what_follows(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """A slow call is slow and then right, or slow and then wrong where both are ordered."""
    loop = asyncio.get_running_loop()
    judge.script(Fault(kind="latency", seconds=0.15, times=2), Fault(kind="status", status=503, times=1))
    started = loop.time()
    with pytest.raises(APIStatusError):
        await ask(client)
    assert loop.time() - started >= 0.15
    assert (await ask(client)).choices
    assert loop.time() - started >= 0.3


async def test_faults_meet_only_calls_that_fit(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """By turn and by text; what does not fit is answered and uses nothing up."""
    judge.script(Fault(kind="status", turn="missing_tools", match='say "no"', times=1))
    assert await text_of(client, "analysis", text='say "no"')
    assert await text_of(client, "missing_tools", text="say yes")
    with pytest.raises(APIStatusError):
        await text_of(client, "missing_tools", text='say "no"')
    assert judge.faults_met == {"status": 1}


async def test_faults_can_be_ordered_over_http(judge: ScriptedJudge, client: AsyncOpenAI) -> None:
    """Another process orders, looks, and takes back."""
    base = judge.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session:
        faults = [{"kind": "status", "status": 429, "times": 3}, {"kind": "empty", "times": None}]
        async with session.post(f"{base}/script", json={"faults": faults}) as response:
            assert response.status == 200
        with pytest.raises(RateLimitError):
            await ask(client)
        async with session.get(f"{base}/script") as response:
            shown = await response.json()
        assert shown["faults"] == [{"kind": "status", "status": 429, "times": 2}, {"kind": "empty", "times": None}]
        assert (shown["calls"], shown["faults_met"]) == (1, {"status": 1})
        async with session.get(f"{base}/requests") as response:
            assert (await response.json())["requests"][0]["messages"] == conversation("analysis")
        async with session.delete(f"{base}/script") as response:
            assert (await response.json())["faults"] == []
    assert (await ask(client)).choices[0].message.content


@pytest.mark.parametrize(
    "script",
    [{"faults": [{"kind": "explode"}]}, {"faults": [{"kind": "empty", "time": 1}]}, {"fault": []}, []],
    ids=["unknown-kind", "unknown-key", "no-list", "no-object"],
)
async def test_misspelt_script_is_refused(judge: ScriptedJudge, script: Any) -> None:
    """A test whose fault never happens must not pass; nothing of the script is taken."""
    address = judge.base_url.replace("/v1", "/script")
    async with aiohttp.ClientSession() as session, session.post(address, json=script) as response:
        assert response.status == 400
    assert judge.faults == []


# --- as a process --------------------------------------------------------------------------------------


async def test_runs_as_a_process_until_sigterm() -> None:
    """Its first line is the base URL; SIGTERM ends it with 0 even while a call hangs."""
    arguments = ["-m", "tarsy_scoring.embedded.scripted_judge", "--port", "0", "--record", "1"]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        base_url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        async with AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
            assert "stand-in" in await text_of(client)
            script = json.dumps({"faults": [{"kind": "hang"}]})
            async with aiohttp.ClientSession() as session:
                await (await session.post(base_url.replace("/v1", "/script"), data=script)).read()
            hanging = asyncio.create_task(text_of(client))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0
            with pytest.raises(APIConnectionError):
                await hanging
    finally:
        if process.returncode is None:
            process.kill()
