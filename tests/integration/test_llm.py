"""The client against a real HTTP server: requests, replies, and the error of each failure."""

import asyncio
import contextlib
import json
import re
import shutil
import ssl
import subprocess
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from infrastructure import wait_until
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import AttemptTimedOut, ConfigurationError, JudgeUnavailable, ScoringError, WaitFor
from tarsy_scoring.judge.ask import client as llm_module
from tarsy_scoring.judge.ask import endpoint as endpoint_module
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question, Turn
from tarsy_scoring.timeline.render.context import estimate_tokens

KEY = "sk-test-0123456789"
PRIVATE = "private words of a transcript"
MESSAGES = [Message("system", "Judge."), Message("user", f"{PRIVATE}, with ümlauts\n\u2028 and \U0001f600")]
PRICES = {"input": 1.0, "cached_input": 0.1, "output": 10.0}

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(content: Any = "67", **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content} | changes.pop("message", {})
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served-1",
        "choices": [{"index": 0, "message": message, "finish_reason": changes.pop("finish_reason", "stop")}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 600}},
    } | changes


def replies(body: Any = None, status: int = 200, text: str | None = None, **headers: str) -> Step:
    async def respond(request: web.Request) -> web.StreamResponse:
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        if text is not None:
            return web.Response(text=text, status=status, headers=named)
        return web.json_response(completion() if body is None else body, status=status, headers=named)

    return respond


def fails(status: int, message: str = "", headers: dict[str, str] | None = None, **fields: Any) -> Step:
    async def respond(request: web.Request) -> web.StreamResponse:
        body = {"error": {"message": message or f"You said: {PRIVATE}, with {KEY}", **fields}}
        return web.json_response(body, status=status, headers=headers)

    return respond


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def hangs_in_the_middle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    return await hangs(request)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Endpoint:
    """A scripted endpoint; when the script is used up it repeats its last step."""

    def __init__(self) -> None:
        self.script: list[Step] = [replies()]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.url = ""
        self.waits: list[float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(request.headers.copy())
        self.paths.append(request.raw_path)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await step(request)

    def forget(self) -> None:
        self.requests.clear()
        self.waits.clear()

    async def is_asked(self) -> None:
        await until(lambda: bool(self.requests))

    async def sleep(self, seconds: float) -> None:
        """Replaces `asyncio.sleep`: records the wait and returns at once."""
        self.waits.append(seconds)


async def serve(endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> web.AppRunner:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", endpoint.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    endpoint.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    return runner


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    runner = await serve(endpoint)
    yield endpoint
    await runner.cleanup()


Connect = Callable[..., JudgeClient]


@pytest.fixture
async def connect(endpoint: Endpoint) -> AsyncIterator[Connect]:
    clients: list[JudgeClient] = []

    def connect(key: str | None = KEY, slots: int = 16, **settings: Any) -> JudgeClient:
        provider = ProviderSettings.model_validate({"base_url": endpoint.url, "model": "judge-1"} | settings)
        clients.append(JudgeClient("main", provider, key, slots=slots, sleep=endpoint.sleep))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


async def ask(
    client: JudgeClient, deadline_s: float = 30, factor: int = 1, permits: "Ledger | None" = None, tokens: float = 1.0
) -> Turn:
    question = Question("analysis", MESSAGES, reply_limit_factor=factor)
    return await client.ask(question, clock=AttemptClock(deadline_s), permits=permits, token_factor=tokens)


class Ledger:
    """Permits every call, and records the calls and their results."""

    def __init__(self, until_settled: Callable[[], Awaitable[None]] | None = None) -> None:
        self.admitted: list[tuple[int, float | None]] = []
        self.settled: list[dict[str, Any]] = []
        self._until_settled = until_settled

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> int:
        self.admitted.append((tokens, most_usd))
        return len(self.admitted)

    async def settle(self, permit: int, **result: Any) -> None:
        if self._until_settled:
            await self._until_settled()
        self.settled.append({name: fact for name, fact in result.items() if fact is not False})


async def test_a_call_sends_the_conversation_and_reads_the_turn(endpoint: Endpoint, connect: Connect) -> None:
    turn = await ask(connect(prices_usd_per_million_tokens=PRICES, extra_headers={"X-Team": "sre"}))

    assert endpoint.paths == ["/v1/chat/completions"]
    messages = [{"role": m.role, "content": m.content} for m in MESSAGES]
    assert endpoint.requests == [{"model": "judge-1", "messages": messages, "max_tokens": 8000}]
    assert [endpoint.headers[0][name] for name in ("Authorization", "X-Team")] == [f"Bearer {KEY}", "sre"]
    cost_usd = pytest.approx((400 * 1.0 + 600 * 0.1 + 200 * 10.0) / 1e6)
    assert turn == Turn(
        "analysis", "67", "main", "judge-1", "served-1", 1000, 600, 200, cost_usd, turn.latency_ms, "stop"
    )


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no usage": (completion(usage=None), {"input_tokens": None, "cost_usd": None}),
    "no cache details": (
        completion(usage={"prompt_tokens": 10, "completion_tokens": 5}),
        {"cached_input_tokens": None, "cost_usd": pytest.approx(60e-6)},
    ),
    "usage of nonsense": (
        completion(usage={"prompt_tokens": "10", "completion_tokens": -5, "prompt_tokens_details": []}),
        {"input_tokens": None, "output_tokens": None, "cost_usd": None},
    ),
    "usage of the most tokens": (
        completion(usage={"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31 - 1}),
        {"input_tokens": 2**31 - 1, "output_tokens": 2**31 - 1},
    ),
    "usage of too many tokens": (
        completion(usage={"prompt_tokens": 2**31, "completion_tokens": 10**400, "prompt_tokens_details": None}),
        {"reply": "67", "input_tokens": None, "output_tokens": None, "cost_usd": None},
    ),
    "refusal": (completion(None, message={"refusal": "I cannot"}), {"reply": "", "refusal": "I cannot"}),
    "cut": (completion(None, finish_reason="length"), {"reply": "", "finish_reason": "length"}),
    "filter": (completion("x", finish_reason="content_filter"), {"finish_reason": "content_filter"}),
    "tools": (completion(None, message={"tool_calls": [{"id": "1"}]}), {"reply": "", "has_tool_calls": True}),
    "no tools": (completion("67", message={"tool_calls": []}), {"has_tool_calls": False}),
    "parts": (completion([{"type": "text", "text": "6"}, {"type": "image"}, {"text": "7"}]), {"reply": "67"}),
    "what a database refuses": (completion("a\0b\ud800c"), {"reply": "ab\ufffdc"}),
    "null": (completion(model=None, finish_reason=None), {"model_served": None, "finish_reason": None}),
    "null error beside the answer": (completion(error=None), {"reply": "67"}),
}


async def test_every_end_of_an_answer_is_a_turn(endpoint: Endpoint, connect: Connect) -> None:
    """The client judges no answer; an unknown number is None and never 0."""
    client = connect(prices_usd_per_million_tokens=PRICES)
    for name, (body, expected) in ENDS.items():
        endpoint.script = [replies(body)]
        turn = await ask(client)
        assert {field: getattr(turn, field) for field in expected} == expected, name
    endpoint.script = [replies(text=json.dumps(completion()))]  # with another content type
    assert (await ask(client)).reply == "67"
    assert endpoint.waits == []


TRANSIENT = {
    "request_timeout": fails(408),
    "conflict": fails(409),
    "internal_error": fails(500),
    "bad_gateway": replies(text="<html>Bad Gateway</html>", status=502),
    "overloaded": fails(503),
    "site_specific_5xx": fails(529),
    "error_in_200": fails(200, code="server_error"),
    "error_text_in_200": replies({"error": "upstream went away"}),
    "no_choices": replies(completion() | {"choices": []}),
    "choices_null": replies(completion() | {"choices": None}),
    "choice_without_message": replies(completion() | {"choices": [{"finish_reason": "stop"}]}),
    "broken_in_the_middle": replies(completion("Half of", finish_reason="error")),
    "not_json": replies(text='{"choices": ['),
    "not_text": replies(text="\xff"),
    "nested_to_death": replies(text="[" * 100_000),
    "empty_body": replies(text=""),
    "a_list": replies([]),
    "breaks_off": breaks_off,
    "hangs_up": hangs_up,
}


async def test_a_transient_error_is_retried_and_then_an_unavailable_judge(endpoint: Endpoint, connect: Connect) -> None:
    client = connect()
    for name, step in TRANSIENT.items():
        endpoint.script = [step, step, replies()]
        assert (await ask(client)).reply == "67", name
        assert len(endpoint.requests) == 3, name
        assert endpoint.requests[0] == endpoint.requests[2], name
        assert endpoint.waits == [pytest.approx(base, rel=0.2) for base in (1, 2)], name
        endpoint.forget()

        endpoint.script = [step]
        with pytest.raises(JudgeUnavailable, match="'judge-1' at 'main'"):
            await ask(client)
        assert len(endpoint.requests) == 4, name
        assert endpoint.waits == [pytest.approx(base, rel=0.2) for base in (1, 2, 4)], name
        endpoint.forget()


class Bomb:
    """Replies with 400 MB of JSON, plain or as gzip; `taken` counts the bytes that the client takes."""

    def __init__(self, status: int, encoding: str) -> None:
        self.status, self.encoding = status, encoding
        self.taken = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "Content-Encoding": self.encoding}
        response = web.StreamResponse(status=self.status, headers=headers)
        await response.prepare(request)
        packer = zlib.compressobj(wbits=31)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            for _ in range(400):
                piece = b" " * 1_000_000
                piece = packer.compress(piece) if self.encoding == "gzip" else piece
                await response.write(piece)
                self.taken += len(piece)
        return response


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize(("status", "error"), [(200, JudgeUnavailable), (401, WaitFor)], ids=["success", "error"])
async def test_neither_a_long_nor_a_packed_reply_is_read_whole(
    endpoint: Endpoint, connect: Connect, status: int, error: type[ScoringError], encoding: str
) -> None:
    """Of an unreadable error the status counts."""
    bomb = Bomb(status, encoding)
    endpoint.script = [bomb]
    client = connect(max_reply_tokens=1000, extra_headers={"Accept-Encoding": "gzip"})

    tracemalloc.start()
    try:
        with pytest.raises(error) as raised:
            await ask(client)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    if status == 200:
        asks = "more than 1064576 bytes; .* max_reply_tokens" if encoding == "identity" else "compressed its reply"
        assert re.search(asks, str(raised.value))
    assert most < 32_000_000
    assert bomb.taken < 4 * 32_000_000, "the rest stays in buffers of the kernel"
    assert {headers["Accept-Encoding"] for headers in endpoint.headers} == {"identity"}


async def test_one_long_reply_does_not_end_the_attempt(endpoint: Endpoint, connect: Connect) -> None:
    endpoint.script = [Bomb(200, "identity"), replies(text=" " * 1_048_576 + json.dumps(completion()))]
    assert (await ask(connect(max_reply_tokens=1000))).reply == "67"


@pytest.mark.parametrize("step", [hangs, hangs_in_the_middle], ids=["before_headers", "in_the_middle"])
async def test_a_call_that_timed_out_is_not_repeated(
    endpoint: Endpoint, connect: Connect, let_pass: Callable[[float], None], step: Step
) -> None:
    """The rest of the attempt is for another provider; the failure counts towards opening the circuit."""
    endpoint.script, ledger = [step], Ledger()
    asking = asyncio.create_task(ask(connect(timeout_s=300), deadline_s=600, permits=ledger))
    await endpoint.is_asked()

    let_pass(300)
    with pytest.raises(JudgeUnavailable, match="gave no answer within 300 s"):
        await asking

    assert len(endpoint.requests) == 1
    assert endpoint.waits == []
    assert ledger.settled == [{"failed": True, "reason": "no answer"}]


@pytest.mark.parametrize(
    ("silence_s", "settled"),
    [(300.0, [{"failed": True, "reason": "no answer"}]), (400.0, [])],
    ids=["a_long_silence", "too_short_to_say"],
)
async def test_an_attempt_without_time_left_timed_out(
    endpoint: Endpoint,
    connect: Connect,
    silence_s: float,
    settled: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    let_pass: Callable[[float], None],
) -> None:
    """A call gets the attempt's remaining time; only a long silence counts as the provider's failure."""
    monkeypatch.setattr(endpoint_module, "SILENCE_S", silence_s)
    endpoint.script, ledger = [hangs], Ledger()
    asking = asyncio.create_task(ask(connect(timeout_s=600), deadline_s=300, permits=ledger))
    await endpoint.is_asked()

    let_pass(300)
    with pytest.raises(AttemptTimedOut):
        await asking

    assert len(endpoint.requests) == len(ledger.admitted) == 1
    assert ledger.settled == settled


@pytest.mark.parametrize(
    ("step", "error", "calls"), [(replies(), None, 1), (fails(500), JudgeUnavailable, 4)], ids=["an_answer", "an_error"]
)
async def test_a_result_in_time_counts_although_its_settlement_is_late(
    endpoint: Endpoint,
    connect: Connect,
    let_pass: Callable[[float], None],
    step: Step,
    error: type[ScoringError] | None,
    calls: int,
) -> None:
    """The settlement waits for the database, which takes no time of the attempt: an error is retried as ever."""
    endpoint.script = [step]

    async def wait_for_a_database() -> None:
        let_pass(300)
        await asyncio.sleep(0.01)  # lets deadlines expire

    ledger = Ledger(wait_for_a_database)
    call = ask(connect(), deadline_s=300, permits=ledger)
    if error is None:
        assert (await call).reply == "67"
    else:
        with pytest.raises(error):
            await call
    assert (len(endpoint.requests), len(ledger.settled)) == (calls, calls)


async def test_a_permit_refused_for_a_short_time_is_requested_again(endpoint: Endpoint, connect: Connect) -> None:
    refusals = [WaitFor("full", 2.5, "rate_limit"), WaitFor("full", 1.0, "rate_limit")]

    class Full(Ledger):
        async def admit(self, provider: str, tokens: int, most_usd: float | None) -> int:
            if refusals:
                raise refusals.pop(0)
            return await super().admit(provider, tokens, most_usd)

    assert (await ask(connect(), permits=Full())).reply == "67"
    assert endpoint.waits == [2.5, 1.0]


USAGE = {"prompt_tokens": 50_000, "completion_tokens": 900}
COST = pytest.approx(0.059)
BILLED = {"tokens": 50_900, "cost_usd": COST}
UNKNOWN = {"tokens": None, "cost_usd": None}
NOTHING = {"tokens": 0, "cost_usd": 0.0}


SETTLED = {
    "bad gateway": (fails(502), {"failed": True, "reason": "HTTP 502", **UNKNOWN}),
    "billed": (replies({"usage": USAGE}, 504), {"failed": True, "reason": "HTTP 504", **BILLED}),
    "no choice": (replies({"choices": [], "usage": USAGE}), {"failed": True, "reason": "no answer", **BILLED}),
    "breaks off": (breaks_off, {"failed": True, "reason": "no answer"}),
    "rejected": (fails(400), {"is_refused": True, "is_rejected": True, "reason": "HTTP 400", **NOTHING}),
}


async def test_a_failed_call_settles_only_known_costs(endpoint: Endpoint, connect: Connect) -> None:
    """Possibly billed tokens stay reserved unless the body has the usage; a refused call costs nothing."""
    client = connect(prices_usd_per_million_tokens=PRICES)
    for name, (step, settled) in SETTLED.items():
        endpoint.script, ledger = [step], Ledger()
        with pytest.raises(ScoringError):
            await ask(client, deadline_s=0.7, permits=ledger)
        assert ledger.settled[0] == settled, name


@pytest.mark.parametrize(
    ("remaining", "reset", "blocked_s"),
    [("1200", "9s", None), ("1199", "9s", 9.0), ("0", "1h", 300.0), ("0", "9999999999", 300.0)],
    ids=["enough_for_one_more", "too_few", "an_hour", "a_moment"],
)
async def test_an_answer_settles_tokens_cost_and_rate(
    endpoint: Endpoint, connect: Connect, remaining: str, reset: str, blocked_s: float | None
) -> None:
    """Also the prompt's real tokens, and how long the provider has no room for a call of this size."""
    headers: dict[str, Any] = {"x_ratelimit_remaining_tokens": remaining, "x_ratelimit_reset_tokens": reset}
    endpoint.script, ledger = [replies(**headers)], Ledger()

    turn = await ask(connect(prices_usd_per_million_tokens=PRICES), permits=ledger)

    estimated = sum(estimate_tokens(m.content) for m in MESSAGES)  # of the prompt
    assert ledger.admitted == [(estimated + 8_000, pytest.approx(0.08, rel=0.01))]
    [settled] = ledger.settled
    assert settled == {
        "tokens": 1_200,
        "cost_usd": turn.cost_usd,
        "estimated_tokens": estimated,
        "read_tokens": 1_000,
        "blocked_s": blocked_s,
    }


async def test_a_wait_beyond_the_attempt_is_not_begun(
    endpoint: Endpoint, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised at once instead."""
    monkeypatch.setattr(llm_module, "RETRY_WAITS_S", (25.0,))
    for step, error in (fails(429, headers={"Retry-After": "20"}), WaitFor), (fails(500), JudgeUnavailable):
        endpoint.script = [step]
        with pytest.raises(error):
            await ask(connect(), deadline_s=15)
    assert endpoint.waits == []


REFUSES_MAX_TOKENS = fails(
    400,
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    code="unsupported_parameter",
    param="max_tokens",
)
REFUSES_TEMPERATURE = fails(
    400, "Unsupported value: 'temperature' does not support 0.2", code="unsupported_value", param="temperature"
)


async def test_unsupported_parameters_are_given_up_once_for_all_calls(endpoint: Endpoint, connect: Connect) -> None:
    endpoint.script = [REFUSES_MAX_TOKENS, REFUSES_TEMPERATURE, replies()]
    client = connect(temperature=0.2)

    await ask(client)
    await ask(client)

    sent = [set(r) - {"model", "messages"} for r in endpoint.requests]
    assert sent == [
        {"max_tokens", "temperature"},
        {"max_completion_tokens", "temperature"},
        {"max_completion_tokens"},
        {"max_completion_tokens"},
    ]
    assert endpoint.waits == []


FAILING = {
    "rejected": fails(400, code=PRIVATE, param=KEY),
    "key": fails(401),
    "rate": fails(429),
    "unavailable": fails(500),
    "in_200": fails(200),
    "too_long": fails(400, f"prompt is too long: {PRIVATE} {KEY}"),
    "plain_text": replies(text=f"{PRIVATE} {KEY}", status=500),
    "broken_answer": replies(text='{"choices": "' + PRIVATE),
}


async def test_neither_prompt_nor_key_reach_an_error_or_a_log(
    endpoint: Endpoint, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = connect()
    for name, step in FAILING.items():
        endpoint.script = [step]

        with structlog.testing.capture_logs() as logged, pytest.raises(ScoringError) as failed:
            await ask(client)

        chain: list[str] = []
        error: BaseException | None = failed.value
        while error is not None:
            chain.append(f"{error!s} {error.args}")
            error = error.__cause__ or error.__context__
        written = "\n".join([*chain, str(logged), caplog.text])
        assert PRIVATE not in written, name
        assert KEY not in written, name


@pytest.mark.parametrize(
    ("settings", "slots", "at_once"),
    [({"max_concurrency": 3}, 16, 3), ({}, 5, 5), ({}, 120, 120)],
    ids=["max_concurrency", "slots", "more_than_pools_usually_hold"],
)
async def test_concurrent_calls_are_limited(
    endpoint: Endpoint, connect: Connect, settings: dict[str, Any], slots: int, at_once: int
) -> None:
    """By the provider's `max_concurrency`, else by the slots; the connection pool is no hidden limit."""
    running, most = 0, 0
    go = asyncio.Event()

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        return await replies()(request)

    endpoint.script = [count]
    client = connect(slots=slots, **settings)
    calls = asyncio.gather(*(ask(client) for _ in range(at_once + 4)))
    await until(lambda: running == at_once)
    go.set()
    await calls
    assert most == at_once


async def test_waiting_for_a_slot_counts_neither_against_the_call_nor_the_attempt(
    endpoint: Endpoint, connect: Connect, let_pass: Callable[[float], None]
) -> None:
    async def takes_long(request: web.Request) -> web.StreamResponse:
        let_pass(200)
        return await replies()(request)

    endpoint.script = [takes_long]
    client = connect(max_concurrency=1, timeout_s=300)
    await asyncio.gather(*(ask(client, deadline_s=300) for _ in range(10)))
    assert endpoint.waits == []


async def test_a_cancelled_call_frees_its_slot(endpoint: Endpoint, connect: Connect) -> None:
    endpoint.script = [hangs, replies()]
    client = connect(max_concurrency=1)
    call = asyncio.create_task(ask(client))
    await until(lambda: len(endpoint.requests) == 1)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert (await ask(client)).reply == "67"
    await client.close()  # the fixture closes it a second time


async def test_a_providers_proxy_is_used(endpoint: Endpoint, connect: Connect) -> None:
    through = endpoint.url.replace("http://", "http://user:pass@").removesuffix("/v1")
    await ask(connect(base_url="http://judge.invalid/v1", proxy=through))
    assert endpoint.paths == ["http://judge.invalid/v1/chat/completions"]
    assert endpoint.headers[0]["Proxy-Authorization"].startswith("Basic ")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


async def test_an_endpoint_of_an_own_authority_is_trusted_only_with_its_ca(
    endpoint: Endpoint, connect: Connect, certificate: tuple[Path, Path]
) -> None:
    key, ca = certificate
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(ca, key)
    private = Endpoint()
    runner = await serve(private, tls)
    try:
        assert (await ask(connect(base_url=private.url, ca_file=ca))).reply == "67"
        with pytest.raises(JudgeUnavailable):
            await ask(connect(base_url=private.url))
        assert len(private.requests) == 1
    finally:
        await runner.cleanup()


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    r"providers\.main\.ca_file: cannot use /nowhere": ({"ca_file": "/nowhere/ca.pem"}, KEY),
    r"providers\.main\.ca_file: .* no certificate": ({"ca_file": __file__}, KEY),
    r"providers\.main\.proxy": ({"proxy": "socks5://h:1"}, KEY),
    r"providers\.main\.proxy: expected": ({"proxy": "host:port"}, KEY),
    "the key contains a character": ({}, KEY + "\n"),
    r"extra_headers\.X-A": ({"extra_headers": {"X-A": "ü"}}, KEY),
}


async def test_unusable_settings_are_refused_at_the_start() -> None:
    for message, (settings, key) in UNUSABLE.items():
        with pytest.raises(ConfigurationError, match=message) as refused:
            JudgeClient("main", ProviderSettings.model_validate(settings), key)
        assert KEY not in str(refused.value)


async def until(state: Callable[[], bool]) -> None:
    await wait_until(state, 30, "a state of the endpoint")
