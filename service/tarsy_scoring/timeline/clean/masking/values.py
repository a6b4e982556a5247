"""
Finds where the value behind a name begins and ends.

A text may hold JSON in JSON in JSON, so that each quotation mark may stand behind backslashes, and a line end
may be
a written `\\n`. Each reader is linear in the value.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

Value = tuple[int, int]
"""Start and end of a value in its text."""


class Secret(NamedTuple):
    """A secret in a text, in bytes of its UTF-8."""

    start: int
    end: int
    kind: str


STRETCH_BYTES = 1_000


class Checks:
    """
    The number of names that may still be checked in a session.

    A check takes about 50 microseconds, and a hostile text can hold a million names. Behind the last check
    each name is masked together with `STRETCH_BYTES` of the text that follows it. Words that announce a
    secret without a name's structure are ordinary words, too: they have a number of their own, and nothing is
    masked behind the last one.
    """

    def __init__(self, left: int = 20_000, words: int = 20_000) -> None:
        self._left = left
        self._words = words

    def are_used_up(self) -> bool:
        """Count one check; whether there was none left."""
        self._left -= 1
        return self._left < 0

    def are_words_used_up(self) -> bool:
        """Count one announcing word; whether there was none left."""
        self._words -= 1
        return self._words < 0


_OPENING = re.compile(rb"""(?:[bBrRuUfF@$]?(\\*(?:\"\"\"|'''|["'`])|&quot;|&#3[49];|%2[27]|\\+u002[27]))""")
# A tag of YAML or ERB, an object around the value, or a call that only converts it.
_WRAPPING = re.compile(
    rb"""!!?\w+[ \t]+(?=[^|>\s])|\{\s{0,40}\\*["']?(?:value|plaintext|secureString|S)\\*["']?\s*:\s*|<%=[ ](?=["'])
    |(?:Some|Just|Ok|SecretStr|SecretString|SecretBytes|Secret|SecureString|String|Sensitive|bytes|bytearray|str|raw|quote
    |\[\]byte|Buffer\.from|encodeURIComponent|Password|PASSWORD|b64encode|base64encode|nonsensitive|N)(?:::\w+)?
    \((?=[b]?\\*["'])""",
    re.IGNORECASE | re.VERBOSE,
)
# What refers to a value or stands for it, to its own end: `${{ secrets.KEY }}`, `!Ref Key`, `(known after
# apply)`, and a variable and a type of GraphQL.
_REFERENCE = re.compile(
    rb"""\$?\{\{[^\n]{0,400}?\}\}|\$\{[^}\n]{0,400}\}|\$\([^)\n]{0,400}\)|<[a-z][^<>\n]{0,80}>|\([a-z][a-z ,-]*\)
    |\{(?!\s*(?:value|plaintext|secureString)\b)[a-z]\w*:[ ]
    |\$\w{1,80}[,)][\s{}$]|\[?(?:String|ID|Int|Boolean|[A-Z]\w{1,80}Input)!?\]?!?[,)][\s{}$]
    |!(?:Ref|Sub|GetAtt|ImportValue|vault|secret|env|ENV|reference)\b""",
    re.VERBOSE,
)
_TEMPLATE = re.compile(rb"\$?\{\{[^\n\"'`]{0,400}?\}\}")
_LIST = re.compile(rb"\[\s{0,40}(\\*[\"'][^\[\]\n]{1,2000}?)\s{0,40}\]")
# The new value behind an old one: of an assignment, and of a pair of name and value in a diff.
_CHANGED = re.compile(
    rb"\\*[\"'] (?:[-=]>|to) \\*[\"'][^\"'\n]*|\\*[\"'](?:\n|\\n)\+[ \t]+value:[ \t]+\\*[\"'][^\"'\n]*"
)
_CHANGED_BARE = re.compile(rb" (?:->|to) (?=[^\s]*[0-9])[^\s\"',;]+")
# The items of a list of YAML below a name.
_ITEMS = re.compile(rb"[ \t]*(?:(?:\r?\n|\\+n)[ \t]*- [\"']?([^\s\"':]+)[\"']?[ \t]*(?=\r?\n|\\+n|\Z))+")
_BLOCK = re.compile(rb"[|>][-+0-9]{0,2}[ \t]*(?=\r?\n|\\+r?\\*n)")
_HEREDOC = re.compile(rb"<<[-~]?[\"']?(\w{1,30})[\"']?(?:\r?\n|\\+n)")
# A value of several words, in the lines of an environment.
_VARIABLE = re.compile(rb"(?:\A|\n|\\n)[ \t]*(?:export |- )?[A-Z][A-Z0-9_]*=\Z")
_WORDS = re.compile(
    rb"[\w.!#@%^*+~-]+(?: [\w.!#@%^*+~][\w.!#@%^*+~-]*){1,8}"
    rb"(?=[ \t]*(?:\r?\n|\\n)[ \t]*(?:export |- )?[A-Z][A-Z0-9_]*=)"
)
_LINE_END = re.compile(rb"[ \t]*(?:\r?\n|\\+r?\\*n)")
_NEXT_LINE = re.compile(
    rb"""(?:[ \t]*(?:\r?\n|\\+r?\\*n)){1,3}[ \t]*(?![-#])["']?
    (?=[^\s"']*[0-9])(?=[^\s"']*[A-Za-z])([^\s"'\\:=]{6,200})["']?[ \t]*(?=\r?\n|\\+r?\\*n|\\*["'}]|\Z)""",
    re.VERBOSE,
)
# Words of a pass phrase, alone behind a name that begins its line.
_PHRASE = re.compile(rb"([a-z]+(?: [a-z]+){2,11})[ \t]*(?=\r?\n|\\+n|\Z)")
_KEY_OF_LINE = re.compile(rb"(?:\A|\n|\\n)[ \t]*(?:- )?[\w.-]*(?:[ \t]*:[ \t]*|=)\Z")
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
_ARGUMENT = re.compile(rb"""(?:[^\s"'`\\;|&<>]|[;|&<>](?=[A-Za-z0-9!@#$%^*_+~?]))+""")
_TRAILING = b").]}>,;:|"
_LONGEST_BLOCK = 8_000  # of a value of several lines, or many names could each read the rest of a text


_DOUBLED = re.compile(rb"''(?=\w)|(?<=')'\w")


@cache
def _closing(mark: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb"(\\*)" + re.escape(mark.lstrip(b"\\")) + rb"|(\n)")


def quoted(data: bytes, position: int, mark: bytes) -> int:
    """
    The end of a value that a quotation mark opened, or of its line where nothing closes it.

    JSON in JSON doubles the backslashes: a mark closes the value when it stands behind as many as the opening
    mark, and belongs to it when it stands behind more.
    """
    depth = len(mark) - len(mark.lstrip(b"\\"))
    for found in _closing(mark).finditer(data, position):
        if found[2] is not None:
            return found.start()
        behind = len(found[1])
        if mark == b"'" and position < found.start() and _DOUBLED.match(data, found.start()):
            continue  # YAML and SQL double a mark within a value
        if behind < depth or behind % (2 * depth + 2) != 2 * depth + 1:
            return found.start() if behind <= depth else found.end(1) - depth
    return len(data)


def template_end(data: bytes, position: int) -> int:
    """
    The end of a reference of a template language; `position` if none begins there, or one with a literal.
    """
    template = _TEMPLATE.match(data, position)
    return template.end() if template else position


def read_assigned(data: bytes, position: int) -> Value | None:
    """
    The value of an assignment: quoted, bare, a block of YAML, a here-document, or alone on the next line.
    """
    if _REFERENCE.match(data, position):
        return None
    if wrapping := _WRAPPING.match(data, position):
        position = wrapping.end()
    if values := _LIST.match(data, position):
        return values.span(1)
    if opening := _OPENING.match(data, position):
        end = quoted(data, opening.end(), opening[1])
        changed = _CHANGED.match(data, end)
        return opening.end(), changed.end() if changed else end
    if block := _BLOCK.match(data, position):
        return _indented(data, position, block.end())
    if here := _HEREDOC.match(data, position):
        limit = min(len(data), here.end() + _LONGEST_BLOCK)
        closing = data.find(here[1], here.end(), limit)
        return here.end(), closing if closing >= 0 else limit
    if items := _ITEMS.match(data, position):
        return data.index(b"- ", position) + 2, items.end()
    if _LINE_END.match(data, position):
        below = _NEXT_LINE.match(data, position)
        return below and below.span(1)
    if (phrase := _PHRASE.match(data, position)) and _KEY_OF_LINE.search(
        data, max(0, position - 60), position
    ):
        return phrase.span(1)
    if (words := _WORDS.match(data, position)) and _VARIABLE.search(data, max(0, position - 80), position):
        return words.span()
    value = _bare(_BARE, data, position)
    changed = _CHANGED_BARE.match(data, value[1]) if value else None
    return (position, changed.end()) if changed else value


def read_argument(data: bytes, position: int) -> Value | None:
    """An argument of a command line."""
    if opening := _OPENING.match(data, position):
        return opening.end(), quoted(data, opening.end(), opening[1])
    return None if data[position : position + 1] == b"-" else _bare(_ARGUMENT, data, position)


def _bare(pattern: "re.Pattern[bytes]", data: bytes, position: int) -> Value | None:
    match = pattern.match(data, position)
    return match and (position, position + len(match[0].rstrip(_TRAILING)))


def _indented(data: bytes, position: int, line_end: int) -> Value | None:
    """The lines below that are indented deeper than the line of `position`."""
    floor = max(0, position - 400)
    line_start = (
        max(data.rfind(b"\n", floor, position), data.rfind(b"\\n", floor, position) + 1, floor - 1) + 1
    )
    line = data[line_start:position]
    depth = min(len(line) - len(line.lstrip(b" \t-")), 60)
    lines = re.compile(
        rb"(?:[ \t]*(?:\r?\n|\\+r?\\*n)[ \t]{%d,}(?:[^\n\\\"]|\\+(?![nr\\\"]))+)+" % (depth + 1)
    )
    match = lines.match(data, line_end, line_end + _LONGEST_BLOCK)
    if match is None:
        return None
    first = _LINE_END.sub(b"", match[0], count=1).lstrip()
    return match.end() - len(first), match.end()


_ELEMENT = re.compile(
    rb"\s{0,40}(?:<!\[CDATA\[([^\n]{1,400}?)\]\]>|([^<>\n]{1,4000}?)\s{0,40}(?=</|&lt;/|\\+u003c/))"
)


def read_element(data: bytes, position: int) -> Value | None:
    """The text of an XML element."""
    match = _ELEMENT.match(data, position)
    return match and match.span(match.lastindex or 0)


READERS: dict[str, Callable[[bytes, int], Value | None]] = {
    "argument": read_argument,
    "assigned": read_assigned,
    "element": read_element,
}
