"""
Words in endpoints' errors, as patterns: what an error says, and the numbers in it.

Source: `tests/endpoints`, which has the reply behind each pattern. Other spellings belong there first.
"""

import re
from typing import Literal

_I = re.IGNORECASE

TOO_LONG = re.compile(
    r"maximum (?:context|model|input|prompt) length|context (?:size|length|window)[^.]{0,80}exceed"
    r"|exceed[^.]{0,80}context (?:size|length|window|limit)|longer than[^.]{0,40}context"
    r"|(?:prompt|input|request) is too long|too many input tokens"
    r"|context length is only|exceeds? the (?:maximum number of tokens allowed|configured limit)|ContextWindowExceeded"
    r"|tokens \+ `max_new_tokens` must be|`inputs` must have less",
    _I,
)
# One call needs more tokens than a minute has. Waiting does not help, so the limit is a window.
LARGER_THAN_RATE = re.compile(r"Request too large [^:]{0,300}: Limit (\d{1,9}), Requested \d{1,9}", _I)
WINDOW = re.compile(
    r"(?:(?:context|prompt) length (?:is|of)(?: only)?|model length of|context size \(|tokens >|Max Input Tokens="
    r"|tokens allowed \(|configured limit of|too large for model with|`max_new_tokens` must be <="
    r"|`inputs` must have less than|context limit: \d{1,9} \+ \d{1,9} >)\s*(\d{1,9})",
    _I,
)
PROMPT = re.compile(
    r"\((\d{1,9}) (?:in the (?:messages|prompt)|of text input)|You passed (\d{1,9}) input tokens|"
    r"(?:resulted in|request has|request contains|prompt contains(?: at least)?|\(length|request \(|too long:|"
    r"(?<!maximum )input length of|token count \(|context limit:|Got=|Given:)\s*(\d{1,9})",
    _I,
)
# The most reply tokens that the endpoint takes, where the error is about the reply limit alone.
REPLY_LIMIT = re.compile(
    r"(?:supports at most|exceeds the model limit of|range of max_tokens is \[\d{1,9},|`max_new_tokens` must be <="
    r"|cannot be greater than max_model_len=max_total_tokens=)\s*(\d{1,9})",
    _I,
)
WAIT = re.compile(r"\b(?:try again|retry) (?:after|in) (\d[\d.dhms]{0,30})", _I)
UNSUPPORTED = re.compile(
    r"unsupported|n[o']t support|unknown|unrecogni[sz]ed|unexpected|not (?:permitted|allowed)|deprecated", _I
)

# Other words with which endpoints refuse a request part. An endpoint whose error names the JSON form
# at all is asked for a weaker one: that costs one call where the error was about something else.
Refusable = Literal["response_format", "system role"]
REFUSED: tuple[tuple[Refusable, re.Pattern[str]], ...] = (
    (
        "response_format",
        re.compile(r"response[_ ]format|json_(?:schema|object)|\bgrammar\b|generate JSON", _I),
    ),
    ("system role", re.compile(r"does not support 'system'|system role (?:is )?not supported", _I)),
)

# Meanings that neither status nor code tell. Only a message's beginning counts, also inside another
# message: the rest may quote the session, and a used-up quota stops all calls to the provider.
_BEGINS = r"(?:^|\"message\\*\": ?\\*\")"
MEANINGS: tuple[tuple[Literal["quota", "filtered", "key"], re.Pattern[str]], ...] = (
    ("quota", re.compile(_BEGINS + r"(?:Your credit balance is too low|Insufficient Balance)", _I)),
    ("quota", re.compile(_BEGINS + r"(?:Your )?Account [^.]{1,120} is suspended", _I)),
    ("filtered", re.compile(_BEGINS + r"Content Exists Risk", _I)),
    ("key", re.compile(_BEGINS + r"(?:API key not (?:valid|found)|Incorrect(?: |%20)API(?: |%20)key)", _I)),
)

# MiniMax's codes as the HTTP statuses that other endpoints send; it sends them with the status 200.
STATUS_OF_CODE = {1002: 429, 1004: 401, 1008: 402, 1026: 400, 1039: 429, 1041: 429, 2013: 400, 2049: 401}


def number_in(pattern: re.Pattern[str], text: str) -> int | None:
    """The first number that the pattern finds."""
    found = pattern.search(text)
    return next((int(group) for group in found.groups() if group), None) if found else None
