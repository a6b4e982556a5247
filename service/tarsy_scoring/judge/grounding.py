"""
Checks the citations of an analysis against the evidence that the judge saw.

Only the form is checked: that an entry exists and that a quotation occurs in it. Whether the entry supports
the claim is not checked.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from tarsy_scoring.judge.verdict import Grounding
from tarsy_scoring.timeline.context import FittedContext
from tarsy_scoring.timeline.text import without_invisible

_FEWEST_TO_FLAG = 3  # with one or two citations, a single slip is half of them or more
_MOST_QUOTATIONS = 1_000  # each is a search of the evidence; honest analyses hold dozens


def check_citations(analysis: str, evidence: FittedContext) -> Grounding:
    """
    Count the citations of an analysis, and those that hold.

    In a sentence without quotations, each entry id is a citation. It holds if the entry exists; of a range
    (`E3-E5`) the two ends count. In a sentence with quotations, the quotations are the citations, and the ids
    name their entries. A quotation holds if all ids of the sentence exist and one of their entries contains
    it. Without an id, any entry may contain it.

    A quotation is text in double quotation marks of at least three words or 16 characters, or code of at
    least three words. White space, case, Markdown, the kind of quotation marks and dashes, and punctuation at
    the ends are ignored. Words and numbers must be whole. `...` matches anything in the same entry. Code
    after a word about an omitted step (``It should have run `kubectl logs web-1 --previous` ``) is a
    suggestion and no citation, unless a word of evidence comes in between (`... that E4 shows ...`). An id
    without an entry that the evidence uses as a word (`E11000`, an error of MongoDB) is no citation.

    Linear in the analysis and the evidence, except for the search of each quotation; the first 1,000 count.
    """
    shown = _Shown(evidence)
    sentences = list(_sentences(analysis))
    quoted = ((quotation, sentence) for sentence in sentences for quotation in sentence.quotations)
    verdicts = [
        shown.has_entry(entry) for sentence in sentences if not sentence.quotations for entry in shown.cited(sentence)
    ]
    verdicts += (shown.holds(quotation, shown.cited(s)) for quotation, s in islice(quoted, _MOST_QUOTATIONS))
    return Grounding(checked=len(verdicts), held=sum(verdicts))


def is_ungrounded(grounding: Grounding) -> bool:
    """Whether fewer than half of at least three citations hold."""
    return grounding.checked >= _FEWEST_TO_FLAG and grounding.held * 2 < grounding.checked


# --- citations -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sentence:
    ids: dict[str, None] = field(default_factory=dict)
    """The entry ids of the sentence, each once, in order."""
    quotations: list[str] = field(default_factory=list)
    suggests: bool = False
    """Whether code that comes next is a suggestion, as the words in front of it indicate."""


_NUMBER = r"[1-9][0-9]{0,5}"
# Not within words, hexadecimals, paths, versions, addresses: `1E5`, `E5xx`, `E2E`, `E5-2680`, `v1.E5`,
# `00:E5:1A`.
_ID = (
    rf"(?<![\w.\\/@$%#=+&–-])(?<![0-9A-F]:)E{_NUMBER}"
    rf"(?:\s?[-–/+&]\s?E{_NUMBER}|–{_NUMBER})*(?![\w%]|\.[0-9]|[-–]\w|:[0-9A-Fa-f]{{2}}\b)"
)
_SUGGESTS = (
    r"should|could|would|might|must|ought|needs? to|needed to|never|not|cannot|[a-z]{1,8}n['’]t"
    r"|fail(?:s|ed|ing|ure)? to|without|instead|rather|better|missing|missed|lack(?:s|ed|ing)?|omitted|skipped"
    r"|recommend(?:s|ed|ations?)?|suggest(?:s|ed|ions?)?|try|e\.g\.|such as|for example"
)
# Without `show`, because of `does not show`, and without nouns such as `logs`.
_CLAIMS = (
    r"shows|showed|shown|says|said|reads|reported|returns|returned|contains|contained|stated|printed|reveals|revealed"
)
# The lookahead for the first character spares most positions a try of every alternative.
_TOKENS = (
    r'(?=["“„«`E.!?\n])(?:(?<!\w)"(?P<straight>(?=\S)(?:\\.|[^"\\\n]|\n(?![ \t]*\n))++)"'
    r"|[“„](?P<curved>(?:[^“”„\n]|\n(?![ \t]*\n))++)[”“]|«(?P<angled>[^«»\n]++)»"
    r"|(?<!`)(?P<ticks>`++)(?P<code>[^`\n]++)(?P=ticks)(?!`)"
    rf"|(?P<id>{_ID})"
    # The end of a sentence. In `... refused. [E17]` the id still belongs to it.
    r"|(?P<end>(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.!?](?=[)\]*_'’”\"]{0,4}(?:\s|$))(?![^\w\n]{0,6}[\[(]E[0-9])"
    r"|\n(?:(?=[ \t]*(?:\n|[-*+•>|#]|`{3}))|[ \t]*[0-9]{1,3}[.)](?=[ \t]))))"
)
# Words of suggestion affect only code. In a text without code the search for them would take most of the
# time.
_TOKEN = re.compile(_TOKENS)
_TOKEN_AROUND_CODE = re.compile(rf"{_TOKENS}|(?<![\w-])(?i:(?P<suggests>{_SUGGESTS})|(?P<claims>{_CLAIMS}))(?![\w-])")
_QUOTATIONS = ("straight", "curved", "angled", "code")
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 16
_NUMBERS = re.compile(_NUMBER)
_CAPITAL_NEXT = re.compile(r"\s+(?!E[0-9])[A-Z]")
_ITEM_NEXT = re.compile(r"\s{1,20}(?:[-*+•]|[0-9]{1,3}[.)])\s")


def _sentences(analysis: str) -> Iterator[_Sentence]:
    text = without_invisible(analysis)
    sentence, items_suggest = _Sentence(), False
    for token in _tokens(text):
        kind = token.lastgroup or ""
        if kind == "id":
            sentence.ids |= dict.fromkeys(f"E{number}" for number in _NUMBERS.findall(token[0]))
        elif kind in ("suggests", "claims"):
            sentence.suggests = kind == "suggests"
        elif kind in _QUOTATIONS and not (kind == "code" and sentence.suggests):
            sentence.quotations.append(token[kind])
        if not _ends_sentence(token, sentence):
            continue
        yield sentence
        ends_line = token[0].startswith("\n")
        if ends_line:
            items_suggest = _leads_on(text, token.start(), sentence.suggests, items_suggest)
        sentence = _Sentence(suggests=items_suggest and ends_line)
    yield sentence


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """
    Yield ids, quotations, words of suggestion and ends of sentences.

    Text in quotation marks that is no quotation is searched for them, too.
    """
    pattern = _TOKEN_AROUND_CODE if "`" in text else _TOKEN
    position, closing_ticks = 0, -1
    while token := pattern.search(text, position):
        kind = token.lastgroup or ""
        position = token.end()
        if kind == "code" and token.start() == closing_ticks:
            position = token.start("code")  # these ticks close the code in front of them and open none
        elif kind in _QUOTATIONS and not _is_quotation(token):
            position = token.start() + 1
            closing_ticks = token.end(kind) if kind == "code" else closing_ticks
        else:
            yield token


def _ends_sentence(token: re.Match[str], sentence: _Sentence) -> bool:
    kind = token.lastgroup or ""
    if kind not in _QUOTATIONS or (kind == "code" and sentence.suggests):
        return kind == "end"
    return token[kind][-1] in ".!?" and _CAPITAL_NEXT.match(token.string, token.end()) is not None


def _leads_on(text: str, end: int, suggests: bool, items_suggest: bool) -> bool:
    """Whether the line that ends here leads in to suggested items (`It never ran:`), or is one of them."""
    leads_in = suggests and text[max(end - 6, 0) : end].rstrip(" \t*_").endswith(":")
    return (leads_in or items_suggest) and _ITEM_NEXT.match(text, end) is not None


def _is_quotation(token: re.Match[str]) -> bool:
    """Whether a token is long enough, and opened and closed like a quotation; scare quotes are too short."""
    kind = token.lastgroup or ""
    text = token[kind]
    if kind == "straight" and (text[-1].isspace() or _WORD_CHARACTER.match(token.string, token.end())):
        return False
    words = sum(_LETTER_OR_DIGIT.search(word) is not None for word in text.split())
    return words >= _FEWEST_WORDS or (words > 0 and kind != "code" and len(text) >= _FEWEST_CHARACTERS)


# --- evidence ------------------------------------------------------------------------------------

_HEADING = re.compile(r"^\[(E[0-9]+)\] (.*)$", re.MULTILINE)  # text of the session cannot imitate it
_USED_AS_WORD = re.compile(rf"(?<![\w.-])E{_NUMBER}(?![\w)\]-])")


class _Shown:
    """The evidence that the judge saw, with each part normalised once."""

    def __init__(self, evidence: FittedContext) -> None:
        self._evidence = evidence
        self._entries: dict[str, str | None] = {}

    def cited(self, sentence: _Sentence) -> tuple[str, ...]:
        """The ids of the sentence that are citations."""
        return tuple(e for e in sentence.ids if self.has_entry(e) or e not in self._words)

    def has_entry(self, entry: str) -> bool:
        return self._evidence.entry_text(entry) is not None

    def holds(self, quotation: str, ids: tuple[str, ...]) -> bool:
        """Whether one of these entries contains it and all exist; without ids, whether any entry contains it."""
        pieces = [piece for p in _ELLIPSIS.split(_normalised(quotation)) if (piece := p.strip(_AT_ENDS))]
        texts = [self._entry(entry) for entry in ids] if ids else self._everything
        return None not in texts and any(_contains_in_order(pieces, text or "") for text in texts)

    def _entry(self, entry: str) -> str | None:
        if entry not in self._entries:
            text = self._evidence.entry_text(entry)
            # Analyses also quote the heading of an entry: `Tool call kubectl.get`.
            self._entries[entry] = None if text is None else _normalised(f"{self._headings.get(entry, '')}\n{text}")
        return self._entries[entry]

    @cached_property
    def _headings(self) -> dict[str, str]:
        return dict(_HEADING.findall(f"{self._evidence.alert}\n{self._evidence.conversation}"))

    @cached_property
    def _everything(self) -> Sequence[str]:
        """All entries; the text is cut at their headings, because a quotation may not span entries."""
        texts = (self._evidence.alert, self._evidence.conversation)
        return [_normalised(part) for text in texts for part in re.split(r"(?m)^(?=\[E[0-9]+\] )", text)]

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_USED_AS_WORD.findall(f"{self._evidence.alert}\n{self._evidence.conversation}"))


_SAME = str.maketrans('"‘’‚‛“”„‟«»‹›‐‑‒–—−', "'" * 13 + "-" * 6)
_ESCAPE, _ESCAPED_SPACE = re.compile(r"\\(?=['\\/])"), re.compile(r"\\[nrt]")
_DECORATION = re.compile(r"[*`]++(?!\w)|(?<![\w*`])[*`]++|(?<!\w)_++|(?<!_)_++(?!\w)|(?<!\w)'|'(?!\w)")
_BLOCK_MARKS = "-+•|>#"
_ELLIPSIS = re.compile(r"[\[(]?\.{3,}[\])]?")
_AT_ENDS = " .,;:!?()[]{}"
_WORD_CHARACTER, _LETTER_OR_DIGIT = re.compile(r"\w"), re.compile(r"[^\W_]")
_REST_OF_WORD = re.compile(r"\w*+")


def _normalised(text: str) -> str:
    """Text without differences of white space, case, quotation marks, dashes and Markdown."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = _ESCAPED_SPACE.sub(" ", _ESCAPE.sub("", text.translate(_SAME)))
    text = _DECORATION.sub("", text).casefold()
    return " ".join(word for word in text.split() if word.strip(_BLOCK_MARKS))


def _contains_in_order(pieces: Sequence[str], text: str) -> bool:
    """Whether there are pieces and the text contains all of them in this order."""
    position = 0
    for piece in pieces:
        start = _find_whole(piece, text, position)
        if start < 0:
            return False
        position = start + len(piece)
    return bool(pieces)


def _find_whole(piece: str, text: str, position: int) -> int:
    """The position of the piece where it cuts no word or number of the text; -1 where there is none."""
    while (start := text.find(piece, position)) >= 0:
        end = start + len(piece)
        before, behind = text[max(start - 2, 0) : start][::-1], text[end : end + 2]
        has_lost_sign = piece[0].isdigit() and before[:1] == "-"
        if not (has_lost_sign or _is_cut(piece[0], before) or _is_cut(piece[-1], behind)):
            return start
        word = _REST_OF_WORD.match(text, start)
        position = max(start + 1, word.end() if word else 0)
    return -1


def _is_cut(edge: str, beyond: str) -> bool:
    """Whether the word or number at an edge continues in the text; `beyond` is read outwards."""
    if beyond[:1] in (".", ","):
        return beyond[1:].isdigit()
    return _WORD_CHARACTER.match(edge) is not None and _WORD_CHARACTER.match(beyond) is not None
