"""What the errors of the many OpenAI-compatible endpoints mean."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from tables import table
from tarsy_scoring.judge.provider_errors import ErrorResponse

PROMPT_TEXT = "the private words of the prompt"


def fault(
    status: int = 400, payload: Any = None, text: str = "", *, needed_tokens: int = 1, **headers: str
) -> ErrorResponse:
    return ErrorResponse(status, {k.replace("_", "-"): v for k, v in headers.items()}, payload, text, needed_tokens)


def error(message: str = "", status: int = 400, **fields: Any) -> ErrorResponse:
    return fault(status, {"error": {"message": message, **fields}})


@pytest.mark.parametrize(
    ("said", "window", "prompt"),
    [
        pytest.param(
            error(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 10324 tokens.",
                code="context_length_exceeded",
                type="invalid_request_error",
            ),
            8192,
            10324,
            id="openai",
        ),
        pytest.param(error(code="context_length_exceeded"), None, None, id="openai_code_alone"),
        pytest.param(
            error(
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the "
                "messages, 500 in the completion). Please reduce the length of the messages or completion.",
                code=400,
                type="BadRequestError",
            ),
            4096,
            4500,
            id="vllm_requested",
        ),
        pytest.param(
            fault(
                400,
                {
                    "object": "error",
                    "message": "The decoder prompt (length 12345) is longer than the maximum model length of 8192.",
                    "code": 400,
                },
            ),
            8192,
            12345,
            id="vllm_without_error_key",
        ),
        pytest.param(
            error(
                "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is "
                "8192 tokens and your request has 6000 input tokens.",
                code=400,
            ),
            8192,
            6000,
            id="vllm_reply_does_not_fit",
        ),
        pytest.param(
            error(
                "You passed 9000 input tokens and requested 1000 output tokens. However, the model's context length is "
                "only 8192 tokens, resulting in a maximum input length of 7192 tokens.",
                code=400,
            ),
            8192,
            9000,
            id="vllm_passed",
        ),
        pytest.param(
            error(
                "the request exceeds the available context size. try increasing it",
                code=400,
                type="exceed_context_size_error",
                n_prompt_tokens=12345,
                n_ctx=4096,
            ),
            4096,
            12345,
            id="llama_cpp",
        ),
        pytest.param(
            error("request (12345 tokens) exceeds the available context size (8192 tokens)", code=400),
            8192,
            12345,
            id="llama_cpp_prose",
        ),
        pytest.param(
            error("Context size has been exceeded.", status=500, code=500, type="server_error"),
            None,
            None,
            id="llama_cpp_500",
        ),
        pytest.param(fault(500, None, "Context size has been exceeded."), None, None, id="plain_text_500"),
        pytest.param(
            error("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error"),
            200000,
            210000,
            id="anthropic",
        ),
        pytest.param(
            fault(200, {"error": {"message": "maximum context length is 8192 tokens"}}), 8192, None, id="gateway_200"
        ),
        pytest.param(fault(413, {"detail": "The prompt is too long"}), None, None, id="payload_too_large"),
    ],
)
def test_a_prompt_that_is_too_long_is_seen_in_every_spelling(
    said: ErrorResponse, window: int | None, prompt: int | None
) -> None:
    assert said.says_prompt_is_too_long()
    assert said.token_sizes() == (window, prompt)
    assert said.unsupported_parameter(["max_tokens", "temperature"]) is None


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(error("Request too large for this context window: exceeds tokens per min", status=429), id="rate"),
        pytest.param(error("The model does not exist", code="model_not_found", status=404), id="model"),
        pytest.param(error("max_tokens is too large: this model supports at most 4096"), id="reply_limit"),
        pytest.param(fault(502, None, "<html>Bad Gateway</html>"), id="gateway"),
        pytest.param(fault(200, None, '{"choices":[{"message":{"content":"the prompt is too long'), id="broken_answer"),
        pytest.param(fault(400, None, ""), id="nothing_said"),
        pytest.param(fault(400, ["prompt", 1]), id="odd_body"),
    ],
)
def test_other_errors_are_not_about_the_length(said: ErrorResponse) -> None:
    assert not said.says_prompt_is_too_long()


@pytest.mark.parametrize(
    ("said", "parameter"),
    [
        pytest.param(
            error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                code="unsupported_parameter",
                param="max_tokens",
            ),
            "max_tokens",
            id="openai_reply_limit",
        ),
        pytest.param(
            error(
                "Unsupported value: 'temperature' does not support 0 with this model.",
                code="unsupported_value",
                param="temperature",
            ),
            "temperature",
            id="openai_temperature",
        ),
        pytest.param(error("temperature is deprecated for this model."), "temperature", id="prose"),
        pytest.param(
            fault(422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]}),
            "max_tokens",
            id="fastapi",
        ),
        pytest.param(error("Unrecognized request argument supplied: max_tokens"), "max_tokens", id="unrecognized"),
        pytest.param(error("max_tokens is too large", param="max_tokens"), None, id="value_too_large"),
        pytest.param(error("unknown field 'max_completion_tokens'"), None, id="parameter_that_was_not_sent"),
        pytest.param(error("unknown model", code="model_not_found"), None, id="no_parameter_named"),
        pytest.param(error("'temperature' is not supported", status=500), None, id="server_error"),
    ],
)
def test_a_parameter_is_unsupported_only_where_the_endpoint_says_so(said: ErrorResponse, parameter: str | None) -> None:
    assert said.unsupported_parameter({"max_tokens", "temperature"}) == parameter


@table
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert fault(429, {}, **headers).retry_after_s() == (seconds if seconds is None else pytest.approx(seconds))


RESETS = {"x_ratelimit_reset_tokens": "6m0s", "x_ratelimit_reset_requests": "20s"}


@table
def test_a_limit_is_used_up_for_whom_it_has_too_little(
    status: int, tokens: str, requests: str, needed_tokens: int, seconds: float | None
) -> None:
    remaining = {"x_ratelimit_remaining_tokens": tokens, "x_ratelimit_remaining_requests": requests}
    assert fault(status, {}, needed_tokens=needed_tokens, **RESETS, **remaining).retry_after_s() == seconds


def test_a_429_waits_for_what_is_used_up_for_this_call() -> None:
    remaining = {"x_ratelimit_remaining_tokens": "500", "x_ratelimit_remaining_requests": "99"}
    resets = {"x_ratelimit_reset_tokens": "6s", "x_ratelimit_reset_requests": "1h"}
    assert fault(429, {}, needed_tokens=9_000, **remaining, **resets).retry_after_s() == 6


def test_a_date_is_a_wait_from_now() -> None:
    began = time.time()
    asked = fault(429, {}, retry_after=formatdate(began + 20, usegmt=True)).retry_after_s()
    assert asked is not None
    assert int(began) + 20 - time.time() <= asked <= int(began) + 20 - began


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param(
            error(PROMPT_TEXT, code="model_not_found", type="invalid_request_error", param="model"),
            "HTTP 400, code model_not_found, type invalid_request_error, param model",
            id="identifiers",
        ),
        pytest.param(error(PROMPT_TEXT, code=PROMPT_TEXT, type=400, param="x" * 65), "HTTP 400", id="no_identifiers"),
        pytest.param(error(code="sk-secret", type="has-sk-secret-in-it"), "HTTP 400", id="the_key"),
        pytest.param(error(code="secret"), "HTTP 400", id="part_of_the_key"),
        pytest.param(fault(404, None, PROMPT_TEXT), "HTTP 404", id="plain_text"),
        pytest.param(fault(400, {"error": PROMPT_TEXT}), "HTTP 400", id="error_is_text"),
        pytest.param(fault(400, [{"error": {"code": "c1"}}]), "HTTP 400, code c1", id="error_in_a_list"),
    ],
)
def test_a_description_holds_identifiers_and_no_free_text(said: ErrorResponse, words: str) -> None:
    """Messages are stored, logged and published; free text of a provider may quote the prompt or the key."""
    assert said.describe("sk-secret") == words


@pytest.mark.parametrize(
    ("said", "used_up"),
    [
        pytest.param(error(status=429, code="insufficient_quota"), True, id="quota_code"),
        pytest.param(error(status=429, type="insufficient_quota"), True, id="quota_type"),
        pytest.param(error(status=400, code="billing_hard_limit_reached"), True, id="billing"),
        pytest.param(fault(402, {}), True, id="payment_required"),
        pytest.param(error(status=429, code="rate_limit_exceeded"), False, id="rate"),
        pytest.param(error("insufficient_quota", status=429), False, id="only_in_prose"),
    ],
)
def test_a_quota_that_is_used_up(said: ErrorResponse, used_up: bool) -> None:
    assert said.says_quota_is_used_up() is used_up


@table
def test_transient_statuses(status: int) -> None:
    assert fault(status, {}).is_transient()


@table
def test_permanent_statuses(status: int) -> None:
    assert not fault(status, {}).is_transient()


SAID = {"retry_after": "60"}


@pytest.mark.parametrize(
    ("said", "meaning", "account"),
    [
        pytest.param(error(code="context_length_exceeded"), "too_long", {"is_refused": True}, id="too_long"),
        pytest.param(error(status=500, code="context_length_exceeded"), "too_long", {"is_refused": True}, id="as_500"),
        pytest.param(error(status=429, code="insufficient_quota"), "quota", {"opens": "quota"}, id="quota"),
        pytest.param(error(status=401), "key", {"opens": "key"}, id="key"),
        pytest.param(error(status=403), "key", {"opens": "key"}, id="forbidden"),
        pytest.param(error(status=400, code="content_filter"), "filtered", {"is_refused": True}, id="filter"),
        pytest.param(error(status=403, code="content_filter"), "filtered", {"is_refused": True}, id="filter_as_403"),
        pytest.param(error(status=404), "rejected", {"is_refused": True}, id="no_such_model"),
        pytest.param(fault(400, {}, **SAID), "rejected", {"is_refused": True}, id="a_wait_that_cannot_help"),
        pytest.param(fault(429, {}), "pause", {"is_refused": True, "blocked_s": 1.0}, id="rate"),
        pytest.param(fault(429, {}, **SAID), "pause", {"is_refused": True, "blocked_s": 60}, id="rate_for_a_while"),
        pytest.param(
            fault(429, {}, retry_after="1e9"), "pause", {"is_refused": True, "blocked_s": 3_600}, id="rate_for_ever"
        ),
        pytest.param(fault(503, {}, **SAID), "pause", {"failed": True, "blocked_s": 60}, id="pause_of_a_failing_one"),
        pytest.param(fault(503, {}, retry_after="30"), "unavailable", {"failed": True}, id="short_pause"),
        pytest.param(error(status=500), "unavailable", {"failed": True}, id="internal_error"),
        pytest.param(error(status=200), "unavailable", {"failed": True}, id="error_in_a_success"),
    ],
)
def test_what_has_to_be_done_and_what_it_says_of_the_provider(
    said: ErrorResponse, meaning: str, account: dict[str, Any]
) -> None:
    """A failure counts for the circuit; what is refused says nothing of its health; a key or a quota opens it."""
    assert said.meaning == meaning
    assert said.account() == {"reason": f"HTTP {said.status}", **account}


@table
def test_what_may_be_billed(status: int) -> None:
    assert fault(status, {}).may_be_billed()


@table
def test_what_costs_nothing(status: int) -> None:
    assert not fault(status, {}).may_be_billed()
