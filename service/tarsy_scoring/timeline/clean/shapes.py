"""
Finds secrets that their own shape or place identifies, by the rules in `secrets.yaml` and `gitleaks.yaml`.

Also finds private keys, cut or whole, and base64, hex and percent escapes whose text holds a secret.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import re2

from tarsy_scoring.timeline.clean.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.patterns import BytesPattern, compile_bytes, read_rules
from tarsy_scoring.timeline.clean.values import READERS, Checks, Span, Value

_RULES = "secrets.yaml"
# The escape that may precede a token: `EDGE` in `secrets.yaml`.
_EDGE = re.compile(rb"\\+[nrt]|%[0-9A-Fa-f]{2}|\\+u00[0-9a-f]{2}")
_LARGE_COUNT = re.compile(r"\{(?:\d\d+(?:,\d*)?|[1-9],\d\d+)\}")


class Rule(NamedTuple):
    """A rule as `secrets.yaml` explains it."""

    kind: str
    pattern: str
    value: str = ""
    unless: tuple[str, ...] = ()
    loose: bool = False

    @property
    def searched(self) -> str:
        """The pattern; if it is loose, without large counts, for which RE2 has too many states."""
        return _LARGE_COUNT.sub("+", self.pattern) if self.loose else self.pattern


class Rules:
    """
    Rules that are searched together: no secret begins within another rule's match.

    Args:
        window: Bytes in which a match must begin and end; None: any number. It keeps many matches in a long
            line from each reading the rest of the line.
    """

    def __init__(self, rules: Sequence[Rule], window: int | None = None) -> None:
        self._window = window
        self.pattern = "|".join(f"(?:{rule.searched})" for rule in rules)
        self._rules = [(rule, compile_bytes(rule.pattern)) for rule in rules]
        self.any = compile_bytes(self.pattern, capture=False)

    def find(self, data: bytes, checks: Checks) -> Iterator[Span]:
        """The secrets in a text, in order."""
        position = 0
        while (match := self._next(data, position)) is not None:
            start, position = match.span()
            checks.spend(start)
            for rule, pattern in self._rules:
                value = self._value(rule, pattern, data, start)
                if value and value[0] < value[1] and not is_harmless(Candidate(data, value), rule.unless):
                    yield Span(*value, rule.kind)
                    position = max(position, value[1])
                    break

    def _next(self, data: bytes, position: int) -> "re2._Match | None":
        size = self._window or len(data)
        while position < len(data):
            end = position + size
            match = self.any.search(data, position, end)
            if end >= len(data) or (match and (match.start() == position or match.end() < end - size // 2)):
                return match
            # A match that begins near the window's end gets a window for itself.
            position = match.start() if match is not None else end - size // 4
        return None

    def _value(self, rule: Rule, pattern: BytesPattern, data: bytes, start: int) -> Value | None:
        parts = pattern.match(data, start, start + (self._window or len(data)))
        if parts is None:
            return None
        if rule.value:
            return READERS[rule.value](data, parts.end())
        if parts.lastindex is not None:
            return parts.start(parts.lastindex), parts.end(parts.lastindex)
        edge = _EDGE.match(data, start)
        return edge.end() if edge else start, parts.end()


def _read(group: str, window: int | None = None) -> Rules:
    return Rules([Rule(**rule) for rule in read_rules(_RULES, group)], window)


def _tokens() -> Rules:
    shapes = [*read_rules(_RULES, "tokens"), *read_rules("gitleaks.yaml", "tokens").values()]
    edge = read_rules(_RULES, "edge")
    apart = "|".join(f"(?:{shape})" for shape in shapes)  # or `(?i)` of one would hold for those behind it
    return Rules([Rule("token", f"{edge}(?:{apart})[\\w-]*=?=?", unless=("unfinished",), loose=True)])


TOKENS = _tokens()
SHAPES, PLACES, SENTENCES, OUTPUTS = map(_read, ("shapes", "places", "sentences", "outputs"))
COMMANDS = _read("commands", window=4_000)

# --- private keys --------------------------------------------------------------------------------------

_KEY_NAME = (
    r"(?:[A-Za-z0-9-]+ ){0,4}(?i:(?:PRIVATE|SECRET|STATIC|SYMMETRIC|SHARED|SESSION|MASTER|SIGNING|ENCRYPTION"
    r"|ENCRYPTED|CLIENT|SERVER|AES|HMAC) KEY)(?: BLOCK)?(?: [Vv][0-9]+)?"
)
_BEGIN = rf"-{{4,5}} ?BEGIN {_KEY_NAME} ?-{{4,5}}|PuTTY-User-Key-File-[0-9]:"
_END = rf"-{{4,5}} ?END {_KEY_NAME} ?-{{4,5}}|Private-MAC: ?[0-9a-f]+"
KEY_PATTERN = f"{_BEGIN}|{_END}"
_EDGES = compile_bytes(f"({_BEGIN})|({_END})")
# Base64 lines and headers; between them line ends, written line ends, quotation marks and joiners.
_BODY = re.compile(
    rb"""(?:(?:\\+[nrt]|[\s\\"'+,>|]|\.{3,}|\xe2\x80\xa6)*
    (?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|Encryption)[: ][^\n\\]{0,120}
    |[A-Za-z0-9+/=]{16,}(?:\\+/[A-Za-z0-9+/=]+)*(?:\s{0,2}[A-Za-z0-9+/]{1,15}={0,2}(?=\s*\Z))?))*""",
    re.VERBOSE,
)


# A line of base64 that may stand behind a prefix, as each line of a log has one.
_BODY_LINE = re.compile(rb"[^\n]{0,100}?(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{16,76}={0,2}[\s\"',]*")


def find_keys(data: bytes, _checks: Checks) -> Iterator[Span]:
    """Yields private keys with their armour; from a cut key, whatever looks like key material."""
    begun: int | None = None
    body = 0  # where the text behind the last edge starts
    for edge in _EDGES.finditer(data):
        is_end = edge.lastindex == 2
        if begun is not None:
            yield Span(begun, edge.end() if is_end else _body_end(data, body, edge.start()), "private_key")
        elif is_end:
            yield Span(_body_start(data, body, edge.start()), edge.end(), "private_key")
        begun, body = None if is_end else edge.start(), edge.end()
    if begun is not None:
        yield Span(begun, _body_end(data, body, len(data)), "private_key")


def _body_end(data: bytes, position: int, limit: int) -> int:
    body = _BODY.match(data, position, limit)
    position = body.end() if body else position
    while data.startswith(b"\n", position):
        line_end = data.find(b"\n", position + 1, limit)
        line = data[position + 1 : line_end if line_end >= 0 else limit]
        if not _BODY_LINE.fullmatch(line):
            break
        position += 1 + len(line)
    return position


def _body_start(data: bytes, floor: int, position: int) -> int:
    """Where the lines of base64 above a line begin."""
    position = line = data.rfind(b"\n", floor, position) + 1 or floor
    while line > floor:
        line = data.rfind(b"\n", floor, line - 1) + 1 or floor
        if not _BODY_LINE.fullmatch(data, line, position - 1):
            break
        position = line
    return position


# --- encodings -----------------------------------------------------------------------------------------


def _aligned(word: str) -> Iterator[str]:
    """Yields the base64 spellings that a word has at the three byte offsets."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + word.encode() + b"\0" * 3).decode()
        yield re.escape(encoded[-(-8 * offset // 6) : 8 * (offset + len(word)) // 6])


_STARTS: str = read_rules(_RULES, "base64_starts")
_WORDS: list[str] = read_rules(_RULES, "encoded_words")
_SPELT = [
    *(spelling for word in _WORDS for spelling in _aligned(word)),
    f"(?i:{'|'.join(word.encode().hex() for word in _WORDS)})",
    f"(?i:{'|'.join(_WORDS)})[\\w.-]{{0,20}}%(?:3[ADad]|22)",
]
ENCODED_PATTERN = "|".join([*_SPELT, _STARTS, r"(?:\A|\n)\s*[A-Za-z0-9+/]{12,400}={0,2}\s*(?:\n|\z)"])
"""Matches every run in which `find_encoded` may find a secret, and every text that is one line of base64."""

_ENCODED = compile_bytes(ENCODED_PATTERN, capture=False)
_RUN = re.compile(
    rb"""(?P<percent>(?<![\w.~+*-])[\w.~+*-]*+(?:%[0-9A-Fa-f]{2}[\w.~+*&=-]*+)++)
    |(?<![A-Za-z0-9+/])(?:\\+x|0x)?(?P<hex>(?:[0-9A-Fa-f]{2}){12,}+(?:\r?\n(?:[0-9A-Fa-f]{2})+)*+)(?![A-Za-z0-9+/])
    |(?P<base64>[A-Za-z0-9+/_-]{12,}(?:(?:\r?\n|\\+n)[A-Za-z0-9+/_-]{60,}
    |(?<=[A-Za-z0-9+/_-]{60})(?:\r?\n|\\+n)[A-Za-z0-9+/_-]+)*={0,2})""",
    re.VERBOSE,
)


def find_encoded(data: bytes, checks: Checks, is_secret: Callable[[bytes], bool]) -> Iterator[Span]:
    """Yields base64, hex and percent escapes of a secret, and a text that is one run of base64."""
    if _ENCODED.search(data) is None:
        return
    for run in _RUN.finditer(data):
        if _ENCODED.search(run[0]) is None:
            continue
        start, end = run.span()
        is_alone = run["base64"] is not None and not data[:start].strip() and not data[end:].strip()
        checks.spend(start)
        if (decoded := _decoded(run)) and (is_secret(decoded) or (is_alone and _is_printable(decoded))):
            yield Span(start, end, "encoded")


def _decoded(run: re.Match[bytes]) -> bytes:
    if run["percent"] is not None:
        return unquote_to_bytes(run[0].replace(b"+", b" "))
    return bytes.fromhex(run["hex"].decode()) if run["hex"] is not None else _of_base64(run[0])


def encodes_words(run: bytes) -> bool:
    """Whether a run is base64 of readable text with blanks, such as a command."""
    decoded = _of_base64(run)
    return len(decoded) > 8 and b" " in decoded and _is_printable(decoded)


def _is_printable(decoded: bytes) -> bool:
    return decoded.isascii() and decoded.decode().strip().isprintable()


def _of_base64(run: bytes) -> bytes:
    digits = re.sub(rb"\s|\\+n", b"", run).rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(digits[: len(digits) - (len(digits) % 4 == 1)] + b"=" * (-len(digits) % 4))
    except (binascii.Error, ValueError):
        return b""
