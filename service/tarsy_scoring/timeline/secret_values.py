"""
Finds where the value behind a name ends, and whether it is a secret or harmless text.

A text may hold JSON in JSON in JSON, so that each quotation mark may stand behind backslashes, and a line end may be
a written `\\n`. Each reader and check is linear in the value.
"""

import base64
import binascii
import re
from collections.abc import Callable
from functools import cache

from tarsy_scoring.timeline.patterns import compile_bytes, read_rules


class Checks:
    """
    The number of names that may still be checked in a session.

    A check takes about 10 microseconds, and a hostile text can hold a million names. Behind the last check each name
    is masked together with the text that follows it.
    """

    def __init__(self, left: int = 50_000) -> None:
        self._left = left

    def are_used_up(self) -> bool:
        """Count one check; whether there was none left."""
        self._left -= 1
        return self._left < 0


STRETCH_BYTES = 1_000

Value = tuple[int, int]
"""Start and end of a value in its text."""

_WORDS = frozenset(packed for packed in read_rules("gitleaks.yaml", "words").encode().split())

# --- readers ---------------------------------------------------------------------------------------------

_OPENING = re.compile(rb"""(?:[bBrRuUfF@$]?(\\*(?:\"\"\"|'''|["'`])|&quot;|&#3[49];|%2[27]|\\+u002[27]))""")
# A tag of YAML, or an object around the value.
_WRAPPING = re.compile(
    rb"!!?\w+[ \t]+(?=[^|>\s])|\{\s{0,40}\\*[\"']?(?:value|plaintext|secureString)\\*[\"']?\s*:\s*", re.IGNORECASE
)
_LIST = re.compile(rb"\[\s{0,40}(\\*[\"'][^\[\]\n]{1,2000}?)\s{0,40}\]")
_CHANGED = re.compile(rb"\\*[\"'] -> \\*[\"'][^\"'\n]*")
_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?=\r?\n|\\+r?\\*n)")
_HEREDOC = re.compile(rb"<<[-~]?[\"']?(\w{1,30})[\"']?(?:\r?\n|\\+n)")
_LINE_END = re.compile(rb"[ \t]*(?:\r?\n|\\+r?\\*n)")
# A value without quotation marks ends at a blank. Punctuation belongs to it unless another name follows.
_BARE = re.compile(
    rb"""(?:[^\s"'`\\,;&|<>(){}\[\]]
    |\\+(?![nrtu"'`\\/])
    |[;&](?!\s|[A-Za-z_][\w.-]*=|(?:amp|quot|lt|gt|\#\d+);)(?!$)
    |,(?![\s"'\\,]|[\w.-]+[=:])
    |[|<>(){}\[\]]+(?=[A-Za-z0-9!@\#$%^*_+~?-])(?!quot|/)
    |["'](?=[A-Za-z0-9!@\#$%^*_+~?.-]{2}[^\s:=,]*[\s\"'])
    )+""",
    re.VERBOSE,
)
_TRAILING = b").]}>,;:|"
_WORD = re.compile(rb"""(?:[^\s"'`\\,<>{}\[\]();|&]|=["'][^"'\s]*["'],?)+""")
_ARGUMENT = re.compile(rb"""(?:[^\s"'`\\;|&<>]|[;|&<>](?=[A-Za-z0-9!@#$%^*_+~?]))+""")
_CLOSING: dict[bytes, "re.Pattern[bytes]"] = {}


@cache
def _closing(mark: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb"(\\*)" + re.escape(mark.lstrip(b"\\")) + rb"|(\n)")


def quoted(data: bytes, position: int, mark: bytes) -> int:
    """
    The end of a value that a quotation mark opened, or of its line where nothing closes it.

    JSON in JSON doubles the backslashes: a mark closes the value when it stands behind as many as the opening mark,
    and belongs to it when it stands behind more.
    """
    depth = len(mark) - len(mark.lstrip(b"\\"))
    for found in _closing(mark).finditer(data, position):
        if found[2] is not None:
            return found.start()
        behind = len(found[1])
        if behind < depth or behind % (2 * depth + 2) != 2 * depth + 1:
            return found.start() if behind <= depth else found.end(1) - depth
    return len(data)


def read_assigned(data: bytes, start: int, position: int) -> Value | None:
    """The value of an assignment: quoted, bare, a block of YAML, a here-document, or alone on the next line."""
    if wrapping := _WRAPPING.match(data, position):
        position = wrapping.end()
    if values := _LIST.match(data, position):
        return values.span(1)
    if opening := _OPENING.match(data, position):
        end = quoted(data, opening.end(), opening[1])
        if changed := _CHANGED.match(data, end):
            end = changed.end()
        return opening.end(), end
    if block := _BLOCK.match(data, position):
        return _indented(data, position, block.end())
    if here := _HEREDOC.match(data, position):
        closing = data.find(here[1], here.end())
        return here.end(), closing if closing >= 0 else len(data)
    if _LINE_END.match(data, position):
        return _next_line(data, position)
    if (
        (phrase := _PHRASE.match(data, position))
        and _KEY_OF_LINE.search(data, max(0, start - 60), start)
        and not any(_DIAGNOSIS.fullmatch(word) for word in phrase[1].split())
    ):
        return phrase.span(1)
    return _bare(_BARE, data, position)


_PHRASE = re.compile(rb"([a-z]+(?: [a-z]+){2,11})[ \t]*(?=\r?\n|\\+n|\Z)")
_KEY_OF_LINE = re.compile(rb"(?:\A|\n|\\n)[ \t]*(?:- )?[\w.-]*\Z")


def _bare(pattern: "re.Pattern[bytes]", data: bytes, position: int) -> Value | None:
    match = pattern.match(data, position)
    if match is None:
        return None
    return position, position + len(match[0].rstrip(_TRAILING))


_INDENTATION = re.compile(rb"(?:\A|\n|\\n)([ \t]*(?:- )?)[\"']?[\w.-]*\Z")


def _indented(data: bytes, position: int, line_end: int) -> Value | None:
    """The lines below that are indented deeper than the line of `position`."""
    floor = max(0, position - 400)
    line_start = max(data.rfind(b"\n", floor, position), data.rfind(b"\\n", floor, position) + 1, floor - 1) + 1
    line = data[line_start:position]
    depth = min(len(line) - len(line.lstrip(b" \t-")), 60)
    lines = re.compile(rb"(?:[ \t]*(?:\r?\n|\\+r?\\*n)[ \t]{%d,}(?:[^\n\\\"]|\\+(?![nr\\\"]))+)+" % (depth + 1))
    match = lines.match(data, line_end)
    if match is None:
        return None
    first = data[line_end : match.end()]
    return line_end + len(first) - len(_LINE_END.sub(b"", first, count=1).lstrip()), match.end()


_NEXT_LINE = re.compile(
    rb"(?:[ \t]*(?:\r?\n|\\+r?\\*n)){1,3}([ \t]*)(?![-#])[\"']?([^\s\"'\\:=]{6,200})[\"']?[ \t]*(?=\r?\n|\\+r?\\*n|\\*[\"'}]|\Z)"  # noqa: E501
)


def _next_line(data: bytes, position: int) -> Value | None:
    match = _NEXT_LINE.match(data, position)
    if match is None or not (any(c in _DIGITS for c in match[2]) and any(c in _LOWER + _UPPER for c in match[2])):
        return None
    return match.span(2)


def read_argument(data: bytes, _start: int, position: int) -> Value | None:
    """An argument of a command line."""
    if opening := _OPENING.match(data, position):
        return opening.end(), quoted(data, opening.end(), opening[1])
    return None if data[position : position + 1] == b"-" else _bare(_ARGUMENT, data, position)


def read_word(data: bytes, _start: int, position: int) -> Value | None:
    """A word without quotation marks."""
    return _bare(_WORD, data, position)


_CREDENTIALS = re.compile(
    rb"([A-Za-z][\w-]{1,30}[ \t]+)?((?:=\\*\"[^\"\n]*\"|[^\s\"'`\\<>{},]|,(?=\S))+(?:,[ \t]*\w+=(?:\\*\"[^\"\n]*\"|[^\s\"'\\,]+))*)"  # noqa: E501
)


def read_credentials(data: bytes, _start: int, position: int) -> Value | None:
    """What stands behind the scheme of an `Authorization` header."""
    if opening := _OPENING.match(data, position):
        position = opening.end()
    match = _CREDENTIALS.match(data, position)
    return match and match.span(2)


_COOKIES = re.compile(rb"""\\*["']?([\w.$!~-]+=)([^\n"'\\;]+)(?:;[ \t]*([^\n"'\\]*))?""")
_COOKIE_ATTRIBUTES = re.compile(rb"(?i)(?:path|domain|expires|max-age|samesite|secure|httponly|priority|partitioned)\b")


def read_cookies(data: bytes, _start: int, position: int) -> Value | None:
    """The values of a cookie header; the attributes of a new cookie are not part of them."""
    match = _COOKIES.match(data, position)
    if match is None or _COOKIE_ATTRIBUTES.match(match[1]):
        return None
    rest = match[3]
    return match.start(2), match.end(2) if rest is None or _COOKIE_ATTRIBUTES.match(rest) else match.end(3)


_PORT = re.compile(rb"[0-9]{1,5}(?=[/?#,@]|\Z)")


def read_userinfo(data: bytes, start: int, position: int) -> Value | None:
    """The password, or the token in place of a user, before the host of a URL. It may hold `@`, `:` and `/`."""
    first = start + 3
    whole = data[first:position]
    path = re.search(rb"[/?#]", whole)
    authority = whole[: path.start()] if path else whole
    at = authority.rfind(b"@")
    if at < 0:  # an `@` in the path, unless the password holds a slash
        colon = authority.find(b":")
        if colon <= 0 or _PORT.match(whole, colon + 1) or b"." in authority[:colon]:
            return None
        at = whole.rfind(b"@")
    colon = whole.find(b":", 0, at)
    return first + colon + 1, first + at


def read_parameter(data: bytes, _start: int, position: int) -> Value | None:
    return _bare(_PARAMETER, data, position)


def read_reported(data: bytes, start: int, position: int) -> Value | None:
    """The word at the end of a sentence, as in `A temporary password is generated for root: ..`, or alone below it."""
    if data[position - 1 : position] == b"\n":
        return _next_line(data, position - 1)
    match = _LAST_WORD.match(data, position)
    return match and match.span(1)


_LAST_WORD = re.compile(rb"([^\s\"']{6,100})[ \t]*(?=\r?\n|\Z)")


def read_compared(data: bytes, start: int, position: int) -> Value | None:
    """The value to the left of `== password`."""
    opening = _OPENING.match(data, start)
    return opening and (opening.end(), quoted(data, opening.end(), opening[1]))


def read_vague(data: bytes, start: int, position: int) -> Value | None:
    """The characters of a token at the end of what matched."""
    matched = data[start:position]
    return start + len(matched.rstrip(_TOKEN_CHARACTERS)), start + len(matched.rstrip(b"."))


_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_.=~-"
_PARAMETER = re.compile(rb"[A-Za-z0-9%+/=_.~-]+")


def read_path(data: bytes, _start: int, position: int) -> Value | None:
    return _bare(_PATH, data, position)


_PATH = re.compile(rb"""[^\s"'`\\<>()]+""")


def read_element(data: bytes, _start: int, position: int) -> Value | None:
    """The text of an XML element."""
    match = _ELEMENT.match(data, position)
    return match and match.span(match.lastindex or 0)


_ELEMENT = re.compile(rb"\s{0,40}(?:<!\[CDATA\[([^\n]{1,400}?)\]\]>|([^<>\n]{1,4000}?)\s{0,40}(?=</|&lt;/|\\+u003c/))")


def read_echoed(data: bytes, start: int, position: int) -> Value | None:
    """The text that a command prints into another that reads a password."""
    match = _ECHOED.match(data, start, position)
    return match and match.span(1)


_ECHOED = re.compile(
    rb"(?:echo|printf|print)[ \t]+(?:-n[ \t]+)?(?:\\*[\"']%s[^\"']*[\"'][ \t]+)?\\*[\"']?([^\s|;&\"']+)"
)


def read_token(data: bytes, start: int, position: int) -> Value | None:
    """A token to the end of its word, and the secret key that follows an AWS key id in a table."""
    if edge := _EDGE.match(data, start):
        start = edge.end()
    end = _TOKEN_END.match(data, position).end()  # type: ignore[union-attr]  # it matches nothing, too
    if data.startswith((b"AKIA", b"ASIA"), start) and (secret := _AWS_SECRET.match(data, end)):
        end = secret.end()
    return start, end


_EDGE = re.compile(rb"\\+[nrt]|%[0-9A-Fa-f]{2}|\\+u00[0-9a-f]{2}")
_TOKEN_END = re.compile(rb"[\w-]*(?:={1,2}(?!\w))?")
_AWS_SECRET = re.compile(rb"(?:[,:;|\s\"']|\\+[nt]){1,8}(?:[\w ]{1,30}[:=][ \t]*)?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])")


def read_matched(_data: bytes, start: int, position: int) -> Value | None:
    return start, position


READERS: dict[str, Callable[[bytes, int, int], Value | None]] = {
    "assigned": read_assigned,
    "argument": read_argument,
    "cookies": read_cookies,
    "compared": read_compared,
    "credentials": read_credentials,
    "echoed": read_echoed,
    "element": read_element,
    "matched": read_matched,
    "parameter": read_parameter,
    "path": read_path,
    "reported": read_reported,
    "token": read_token,
    "userinfo": read_userinfo,
    "vague": read_vague,
    "word": read_word,
}

# --- checks ----------------------------------------------------------------------------------------------

_HARMLESS = {group: "|".join(patterns) for group, patterns in read_rules("secrets.yaml", "harmless").items()}
_ANYTHING = compile_bytes(_HARMLESS["anything"], capture=False)
_PATH_LIKE = compile_bytes(_HARMLESS["path"], capture=False)
_DIAGNOSIS = compile_bytes(_HARMLESS["diagnosis"], capture=False)
_REFERENCE = compile_bytes(_HARMLESS["reference"], capture=False)
_PARTS = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_NAME_LIKE = re.compile(rb"[a-z0-9]+(?:[-._/][a-z0-9]+)+|[A-Za-z]+(?:[-._/ ][A-Za-z]+)*[0-9]{0,2}")
_LONG_HEX = re.compile(rb"[0-9a-f]{24,}")
_UUID = re.compile(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(rb"(?i)(?:0x|sha\d+:)?[0-9a-f]+")


def is_word_like(value: bytes) -> bool:
    """Whether most letters of a value belong to words, as in `checkout-7d9f` or `OrderServiceFactory`."""
    in_words = letters = 0.0
    for part in _PARTS.findall(value):
        if part.isalpha():
            letters += len(part)
            lower = part.lower()
            if lower in _WORDS or (len(part) >= 4 and _is_pronounceable(lower)):
                in_words += len(part)
        else:
            letters += len(part) / 2
    return in_words * 2 > letters or not letters


_VOWELS = b"aeiouy"


def _is_pronounceable(word: bytes) -> bool:
    vowels = sum(letter in _VOWELS for letter in word)
    return 0.2 * len(word) <= vowels <= 0.7 * len(word) and max(map(len, re.split(rb"[aeiouy]", word))) <= 4


def is_random(value: bytes) -> bool:
    """Whether a value looks like one that a generator made: several kinds of characters, and no words."""
    kinds = sum(any(c in kind for c in value) for kind in (_LOWER, _UPPER, _DIGITS))
    if len(value) < 6 or kinds < 2 or _UUID.fullmatch(value) or not any(c in _DIGITS for c in value):
        return len(value) >= 20 and kinds >= 2 and not is_word_like(value) and b"-" not in value
    return not is_word_like(value) or any(c in b"!@#$%^*~" for c in value)


_LOWER, _UPPER, _DIGITS = b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789"
_MIN_TOKEN = 6


class Found:
    """A value behind a name, with its surroundings."""

    __slots__ = ("data", "end", "keep", "start", "value", "value_start")

    def __init__(self, data: bytes, start: int, keep_end: int, value: Value) -> None:
        self.data, self.start, self.keep = data, start, data[start:keep_end]
        self.value_start, self.end = value
        self.value = data[self.value_start : self.end]

    @property
    def is_quoted(self) -> bool:
        return self.value_start > self.start + len(self.keep)

    @property
    def before(self) -> bytes:
        """The rest of the name to the left."""
        return self.data[max(0, self.start - 40) : self.start]

    @property
    def after(self) -> bytes:
        return self.data[self.end : self.end + 60]


_PROSE_AFTER = re.compile(rb"[ \t]+[a-z]{2,}")
_SENTENCE = re.compile(rb"[A-Za-z][a-z]*(?:['-][a-z]+)*[:,.;!?]?(?:\s+[\w'/().,:;-]+)*")
_STATUS = re.compile(rb"[1-5][0-9]{2}|[0-9]{1,2}")
# Words before `token` or `key` that make another thing of it.
_OTHER_THINGS = tuple(
    b"next prev previous continue continuation page paging pagination cursor sync resume resumption start starting scroll"  # noqa: E501
    b" csrf xsrf _max _min max_ count prompt completion input output unexpected stop lexer cancel cancellation idempotency"  # noqa: E501
    b" fencing lock lease request forward backward public primary foreign partition sort cache object routing lookup unique"  # noqa: E501
    b" group message kafka event metric annotation resource column dedup aggregation translation image bucket"
    b" checksum/".split()
)


def _is_other_thing(before: bytes) -> bool:
    return before.rstrip(b" _.-").lower().endswith(_OTHER_THINGS)


def _is_in_arn(before: bytes) -> bool:
    return before.endswith(b":") and before[-13:-1].isdigit()


_IDENTIFIER = re.compile(rb"[\w./-]+")
_NEXT_NAME = re.compile(rb"[\w.-]{0,40}[=:]")


def is_no_value(found: Found) -> bool:
    """Whether this is a placeholder, a reference or a unit, which is no secret behind any name."""
    value = found.value.strip(b"\\ \t")
    if value.isdigit() and _UNIT.match(found.after):
        return True
    if not value or _ANYTHING.fullmatch(value) is not None or _is_reference(found, value):
        return True
    if _PATH_LIKE.fullmatch(value) is None:
        return False
    return not all(any(c in kind for c in value) for kind in (_LOWER, _UPPER, _DIGITS)) or is_word_like(value)


_UNIT = re.compile(rb"[ \t]+(?:bytes?|characters|chars|bits?|seconds?|minutes?|hours?|days?|ms|items?|keys?)\b")


def _is_reference(found: Found, value: bytes) -> bool:
    return not found.is_quoted and _REFERENCE.fullmatch(value) is not None


def is_harmless_assigned(found: Found) -> bool:
    """Whether the value behind a name such as `password` or `api_key` is a reference, a status or prose."""
    if is_no_value(found):
        return True
    value, keep = found.value.strip(), found.keep.rstrip()
    if keep[-4:].lower() == b"pwd=" and value.startswith(b"/"):
        return True  # the shell's working directory
    if _is_other_thing(found.before) and b"oken" in keep.lower():
        return True
    word = value.rstrip(b".,;:!?)")
    if found.is_quoted and any(c in _DIGITS for c in value):
        return False
    if _DIAGNOSIS.fullmatch(word.partition(b" ")[0].rstrip(b".,;:")) and _SENTENCE.fullmatch(value):
        return True
    if keep.endswith(b":") and found.after.startswith(b": ") and _IDENTIFIER.fullmatch(value):
        return True  # `failed to refresh token: oauth2: cannot fetch`
    if _is_in_arn(found.before) or found.after.startswith(b"("):
        return True
    if _STATUS.fullmatch(word) and (keep.lower().rstrip(b"\\\"': =").endswith((b"token", b"key")) or len(word) < 3):
        return True
    if found.is_quoted:
        return False
    # `invalid password: user not found` is prose; `password: hunter2` is not.
    return keep.endswith(b":") and value.isalpha() and value.islower() and _PROSE_AFTER.match(found.after) is not None


_RESULT = re.compile(
    rb"[\"'\\]{0,4}(?: in (?:namespace|the)\b.{0,30}?)?[ \t]+"
    rb"(?:is |was |were |has |have |does |could |cannot |can |to be |already )?"
    rb"(?:not\b|n't|found|forbidden|fail|exist|creat|configured|deleted|unchanged|missing|mount|regist|expire|invalid|rotat"
    rb"|denied|rejected|patched|updated|revoked|unavailable|replicated|referenced|sync)"
)


def is_harmless_weak(found: Found) -> bool:
    """
    Whether the value behind `secret`, `token` or `credential` does not look random, as in `token: expired`.

    These names are ordinary words, so only a value that looks random is a secret.
    """
    if is_harmless_assigned(found):
        return True
    bare = found.value.strip(b"\\\"' ")
    if _is_name(bare) or (b'"' in bare and not any(c in _DIGITS for c in bare)):
        return True
    if len(bare) < _MIN_TOKEN or bare.isdigit() or _is_other_thing(found.before):
        return True
    if bare.isalpha() and (bare.islower() or bare.isupper() or bare.istitle() or is_word_like(bare)) and len(bare) < 24:
        return True
    if _NAME_LIKE.fullmatch(bare) and is_word_like(bare):
        return True
    return (b" " in bare and _SENTENCE.fullmatch(bare) is not None) or (
        _RESULT.match(found.after) is not None and _NAME_LIKE.fullmatch(bare) is not None
    )


_SEGMENT = re.compile(rb"[a-z]+[0-9]{0,4}|[0-9]+")


def _is_name(value: bytes) -> bool:
    """Whether a value looks like the name of an object: `cmp2-qat-12083`."""
    segments = re.split(rb"[-.]", value)
    return len(segments) > 1 and value[:1].isalpha() and all(map(_SEGMENT.fullmatch, segments))


_SUFFIXES = re.compile(
    rb"(?i)[_-](?:policy|length|len|name|names|file|path|dir|field|types?|hash|algorithms?|reset|expir\w*|age|ttl|url|uri|endpoint|host|port"
    rb"|chang\w*|required|count|refs?|arn|store|provider|manager|version|format|encoding|rotat\w*|lifetime|duration|timeout|review|ids?"
    rb"|enabled|disabled|min|max|size|limit|rate|bucket|cache|prefix|suffix|pattern|regex|strength|attempts?|history|hint|label|title"
    rb"|alias|namespace|key|header|param\w*|issuer|audience|scopes?|class|method|env|var|source|status|state|error|date|time|at|on|by)\b"
)


def is_harmless_suffixed(found: Found) -> bool:
    """Whether the words behind `password` in a name make another thing of it, as in `password_policy`."""
    return _SUFFIXES.search(found.keep) is not None or is_harmless_weak(found)


def is_harmless_vague(found: Found) -> bool:
    """Whether the value behind `key` or `signature` is not plainly random."""
    bare = found.value.strip(b"\\\"' ")
    return (
        len(bare) < 20
        or b" " in bare
        or _HEX.fullmatch(bare) is not None
        or not any(c in _UPPER for c in bare)
        or not any(c in _LOWER for c in bare)
        or not any(c in _DIGITS for c in bare)
        or is_harmless_weak(found)
        or not is_random(bare)
    )


def is_harmless_loose(found: Found) -> bool:
    """Whether a value that only stands near a name is no secret: `password is hunter2` against `password is wrong`."""
    bare = found.value.strip(b"\\\"' ")
    name = found.keep.lower()
    check = is_harmless_weak if name.startswith((b"secret", b"token")) else is_harmless_assigned
    if check(found) or _RESULT.match(found.after) or _NEXT_NAME.fullmatch(bare) or bare.isdigit():
        return True
    if found.is_quoted:
        return bare.isalpha() or _NAME.fullmatch(bare) is not None
    return not (is_random(bare) or (any(c in _DIGITS for c in bare) and bare.isalnum() and _says(found.keep)))


_NAME = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[a-z]+(?:_[a-z]+)+")


def is_phrase(found: Found) -> bool:
    """Whether `identified by` stands in a sentence."""
    return is_no_value(found) or (not found.is_quoted and found.value.isalpha())


def is_no_user(found: Found) -> bool:
    """Whether `-u name:value` is not a user and a password: `-u 1000:1000` and `journalctl -u kubelet:main` are not."""
    if is_no_value(found) or found.value.isdigit():
        return True
    return found.value.isalpha() and not _HTTP_CLIENT.search(found.data[max(0, found.start - 300) : found.start])


_HTTP_CLIENT = re.compile(rb"\b(?:curl|wget|https?|xh|ab|wrk|smbclient|rpcclient|net)\b[^\n|;]*\Z")


def _says(keep: bytes) -> bool:
    """Whether the words between name and value say that this is the value."""
    return re.search(rb"(?i)\b(?:is|was|to)\b:?[ \t]*\Z|\|[ \t]*\Z|[(,][ \t]*\Z", keep) is not None


def is_scheme(found: Found) -> bool:
    """Whether the value of an `authorization` is a word about it: `authorization: RBAC`, `authorization: failed`."""
    value = found.value.strip(b"\\")
    if is_no_value(found) or len(value) < 4:
        return True
    if _DIAGNOSIS.fullmatch(value.split()[0].rstrip(b",.;:")):
        return True
    words = re.fullmatch(rb"[A-Za-z,]+[.:]?", value) is not None and (len(value) < 24 or is_word_like(value))
    return words or is_harmless_weak(found)


def is_prose(found: Found) -> bool:
    """Whether the word behind `basic` or `bearer` is prose (`basic NetworkPolicy`)."""
    value = found.value
    if len(value) < 8 or (value.isalpha() and (len(value) < 16 or is_word_like(value))):
        return True
    if (
        found.keep.strip().lower() in (b"key", b"token", b"basic", b"digest", b"hawk")
        and not is_random(value)
        and not _is_encoded(value)
    ):
        return True
    return (
        is_no_value(found)
        or value.isdigit()
        or (_NAME_LIKE.fullmatch(value) is not None and is_word_like(value))
        or (bool(_NEXT_NAME.fullmatch(value)) and not value.endswith(b"="))
    )


def _is_encoded(value: bytes) -> bool:
    """Whether a value is base64 of `user:password`."""
    try:
        return b":" in base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def is_no_login(found: Found) -> bool:
    """Whether the part of a URL before `@` holds no password."""
    value = found.value
    if is_no_value(found) or b"$" in value[:1] or len(value) > 300:
        return True
    if found.data[found.value_start - 1 : found.value_start] != b":":  # a token in place of a user
        return len(value) < 16 or not is_random(value)
    if value in _SAMPLES and found.data[found.start + 3 : found.value_start].startswith((b"user", b"USER")):
        return True
    # `tcp://10.0.0.1:5432@primary` names a port.
    return value.isdigit() and len(value) <= 5 and b"." in found.data[found.start + 3 : found.value_start]


_SAMPLES = {b"password", b"pass", b"PASSWORD", b"PASS", b"passwd", b"pwd"}


def is_plain_option(found: Found) -> bool:
    """Whether an option of a command has no secret: a port, a path, another option, the word of a sentence."""
    value = found.value.strip(b"\\")
    if is_no_value(found) or value.startswith(b"-"):
        return True
    if value.isdigit() and re.search(rb"-[pPwa][ \t]*\Z", found.keep) and len(value) <= 5:
        return True
    return _DIAGNOSIS.fullmatch(value) is not None and not found.is_quoted


def is_no_field(found: Found) -> bool:
    """Whether a line with four colons is not one of a password file: a place in a source file, for example."""
    return is_no_value(found) or found.value.isdigit() or len(found.value) < 4 or b"/" in found.keep


def is_nameless(found: Found) -> bool:
    """Whether the name that follows a value, as in `{"value": .., "name": ..}`, is not one of a secret."""
    return _NAME_AFTER.match(found.data, found.end) is None or is_harmless_weak(found)


_NAME_AFTER = re.compile(
    rb"""(?i)\\*["']\s*,\s*\\*["'](?:name|key|id|field|parameter_?(?:key|name))\\*["']\s*:\s*\\*["'][\w./-]*?(?:pass|pwd|secret|token|api_?key|credential|private_?key|access_?key)[\w-]{0,12}\\*["']"""
)

CHECKS: dict[str, Callable[[Found], bool]] = {
    "assigned": is_harmless_assigned,
    "bearer": is_prose,
    "cookie": lambda found: is_no_value(found) or len(found.value) < _MIN_TOKEN,
    "docker_auth": lambda found: not _is_encoded(found.value.strip(b"\\")),
    "jwk": lambda found: len(found.value) < 20 or not is_random(found.value),
    "login": is_no_login,
    "loose": is_harmless_loose,
    "nameless": is_nameless,
    "numbers": is_no_user,
    "option": is_plain_option,
    "parameter": lambda found: len(found.value) < 16 or not is_random(found.value),
    "pgpass": is_no_field,
    "phrase": is_phrase,
    "scheme": is_scheme,
    "vague": is_harmless_vague,
    "suffixed": is_harmless_suffixed,
    "reported": lambda found: (
        is_harmless_weak(found) or (not is_random(found.value) and not _LONG_HEX.fullmatch(found.value))
    ),
    "weak": is_harmless_weak,
    "word_like": lambda found: is_named(found.value),
}


def is_named(value: bytes) -> bool:
    """Whether a prefix and a body are a name: the body of a token has small letters, capitals and digits."""
    body = re.split(rb"[_-]", value)[-1]
    kinds = [any(c in kind for c in body) for kind in (_LOWER, _UPPER, _DIGITS)]
    return not all(kinds) or is_word_like(body) or _HEX.fullmatch(body) is not None
