"""
Finds session ids in messages that cannot be decoded, whatever the encoding and the spelling.

Session ids are ASCII, so a text without NUL bytes reads the same in UTF-8, UTF-16 and UTF-32. JSON may
write any character as an escape, also in JSON text within JSON. Compressed or base64 content is not read.
"""

import re
from collections.abc import Iterable, Iterator

from tarsy_scoring.events import SESSION_ID_PATTERN, RescoreRequested, SessionCompleted

NESTED_MOST = 8  # levels of JSON within JSON; a hostile message has as many as it has characters
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROL = dict.fromkeys("bfnrt", " ")
_FIELDS = {*SessionCompleted.model_fields, *RescoreRequested.model_fields}
_IS_NAME = r'"\s*:'
_RUN = re.compile(rf"([A-Za-z0-9_.:@-]+)({_IS_NAME})?")
_PUNCTUATION = "_.:@-"


def mentions(session_id: str, parts: Iterable[bytes]) -> bool:
    """
    Whether any part of a message holds the id, as a whole word.

    A session may have the id `status`, which is also a field of every message: a field's name does not
    count.
    """
    no_name = f"(?!{_IS_NAME})" if session_id in _FIELDS else ""
    word = re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(session_id)}(?![A-Za-z0-9_-]){no_name}")
    return any(word.search(text) for part in parts for text in _readings(part))


def session_ids(parts: Iterable[bytes]) -> set[str]:
    """Every word in a message's parts that may be a session id."""
    found = (pair for part in parts for text in _readings(part) for pair in _RUN.findall(text))
    runs = {run for run, is_name in found if not (is_name and run in _FIELDS)}
    runs |= {run.strip(_PUNCTUATION) for run in runs}
    return {run for run in runs if SESSION_ID_PATTERN.fullmatch(run)}


def _readings(data: bytes) -> Iterator[str]:
    """The texts that the bytes may stand for, each with escapes undone level by level."""
    for content in {data, data.replace(b"\0", b"")}:
        text = content.decode("utf-8", "replace")
        yield text
        for _ in range(NESTED_MOST):
            plain = _ESCAPE.sub(_unescaped, text)
            if plain == text:
                break
            yield plain
            text = plain


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _CONTROL.get(found[2], found[2])
