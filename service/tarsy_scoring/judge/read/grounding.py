"""
Checks the citations in an analysis against the evidence that the judge saw.

Only the form is checked: that an entry exists and that a quotation occurs in it. Whether the entry supports
the claim is not checked.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tarsy_scoring.judge.verdict import FailedCitation, Grounding
from tarsy_scoring.timeline.render.context import FittedContext
from tarsy_scoring.timeline.text import one_line, without_invisible

_FEWEST_TO_FLAG = 3  # with one or two citations, a single slip is half of them or more
_MOST_QUOTATIONS = 1_000  # each searches the evidence; honest analyses hold dozens
_MOST_FAILED = 20  # each is searched in all entries, and stored with the score
_LIST_MARKS = re.compile(r"(?:(?:[-*+•>]|#{1,6}) )+")
_MOST_CHARACTERS, _MOST_IDS = 300, 10  # kept when a citation does not hold


def check_citations(analysis: str, evidence: FittedContext) -> Grounding:
    """
    Count the citations in an analysis and those that hold, and say why the others do not.

    In a sentence without quotations, each entry id is a citation. It holds if the entry exists; in a range
    (`E3-E5`) the two ends count. In a sentence with quotations, the quotations are the citations, and the ids
    name their entries; an id without an entry is a citation there, too. A quotation holds if an
    entry so named contains it. Without an id, any entry may contain it.

    A quotation is text in double quotation marks with at least three words or 16 characters. White space,
    case, Markdown, shapes for quotation marks and dashes, and punctuation at the ends are ignored. Words and
    numbers must be whole. `...` matches anything in the same entry. Code and commands are never citations:
    judges write those that ran and those that they miss alike. An id without an entry that the evidence uses
    as a word (`E11000`, a MongoDB error) is no citation.

    Linear in the analysis and the evidence, except for the search per quotation; the first 1,000 count.
    The first 20 different citations that do not hold are given, each quotation cut to 300 characters.
    """
    shown = _Shown(evidence)
    checked = held = 0
    failed: dict[_Citation, None] = {}
    for citation in _citations(analysis, shown):
        checked += 1
        if shown.holds(citation):
            held += 1
        elif len(failed) < _MOST_FAILED:
            failed[citation] = None
    return Grounding(checked, held, tuple(shown.failure(citation) for citation in failed))


def is_ungrounded(grounding: Grounding) -> bool:
    """Whether fewer than half of at least three citations hold."""
    return grounding.checked >= _FEWEST_TO_FLAG and grounding.held * 2 < grounding.checked


def citing_sentences(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """
    Yield each sentence that names entries, in order: the ids, and the sentence on one line.

    An id may be a word that names no entry (`E11000`).
    """
    text = without_invisible(text)
    for sentence in _sentences(text):
        if sentence.ids:
            words = one_line(text[sentence.start : sentence.end])
            marks = _LIST_MARKS.match(words)
            yield tuple(sentence.ids), words[marks.end() :] if marks else words


# --- citations -------------------------------------------------------------------------------------


class _Citation(NamedTuple):
    """One id, or a quotation with the ids beside it: those that exist, else all."""

    ids: tuple[str, ...]
    quotation: str | None = None


@dataclass(slots=True)
class _Sentence:
    start: int = 0
    end: int = 0
    ids: dict[str, None] = field(default_factory=dict)
    """Entry ids in the sentence, each once, in order."""
    quotations: list[str] = field(default_factory=list)


_NUMBER = r"[1-9][0-9]{0,5}"
# Not within words, hexadecimals, paths, versions, addresses: `1E5`, `E5xx`, `E2E`, `E5-2680`, `v1.E5`,
# `00:E5:1A`.
_ID = (
    rf"(?<![\w.\\/@$%#=+&–-])(?<![0-9A-F]:)E{_NUMBER}"
    rf"(?:\s?[-–/+&]\s?E{_NUMBER}|–{_NUMBER})*(?![\w%]|\.[0-9]|[-–]\w|:[0-9A-Fa-f]{{2}}\b)"
)
# The lookahead for the first character rejects most positions at once.
_TOKEN = re.compile(
    r'(?=["“„E.!?\n])(?:(?<!\w)"(?P<straight>(?=\S)(?:\\.|[^"\\\n]|\n(?![ \t]*\n))++)"'
    r"|[“„](?P<curved>(?:[^“”„\n]|\n(?![ \t]*\n))++)[”“]"
    rf"|(?P<id>{_ID})"
    # Ends a sentence. In `... refused. [E17]` the id still belongs to it.
    r"|(?P<end>(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.!?](?=[)\]*_'’”\"]{0,4}(?:\s|$))(?![^\w\n]{0,6}[\[(]E[0-9])"
    r"|\n(?:(?=[ \t]*(?:\n|[-*+•>|#]|`{3}))|[ \t]*[0-9]{1,3}[.)](?=[ \t]))))"
)
# A command begins with a program whose name is no English word, or has an option.
_COMMAND = re.compile(
    r"(?:\$ )?(?:kubectl|oc|helm|docker|podman|crictl|istioctl|git|curl|wget|ssh|psql|mysql|redis-cli|mongosh?|aws"
    r"|gcloud|az|terraform|systemctl|journalctl|dmesg|grep|ls|ps|df|du|netstat|nslookup|tcpdump|traceroute)\s+\S"
    r"|(?:\$ )?[a-z][\w./-]*+\s(?:[^\n]*\s)?--?[A-Za-z]"
)
_QUOTATIONS = ("straight", "curved")
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 16
_NUMBERS = re.compile(_NUMBER)
_CAPITAL_NEXT = re.compile(r"\s+(?!E[0-9])[A-Z]")


def _citations(analysis: str, shown: "_Shown") -> Iterator[_Citation]:
    left = _MOST_QUOTATIONS
    for sentence in _sentences(analysis):
        ids = shown.cited(sentence)
        existing = tuple(filter(shown.has_entry, ids))
        for entry in ids:
            if not sentence.quotations or (existing and not shown.has_entry(entry)):
                yield _Citation((entry,))
        for quotation in sentence.quotations[:left]:
            yield _Citation(existing or ids, quotation)
        left -= min(left, len(sentence.quotations))


def _sentences(analysis: str) -> Iterator[_Sentence]:
    text = without_invisible(analysis)
    sentence = _Sentence()
    for token in _tokens(text):
        kind = token.lastgroup or ""
        if kind == "id":
            sentence.ids |= dict.fromkeys(f"E{number}" for number in _NUMBERS.findall(token[0]))
        elif kind in _QUOTATIONS and not _COMMAND.match(token[kind]):
            sentence.quotations.append(token[kind])
        if not _ends_sentence(token):
            continue
        sentence.end = token.end()
        yield sentence
        sentence = _Sentence(token.end())
    sentence.end = len(text)
    yield sentence


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """
    Yield ids, quotations and sentence ends.

    Text in quotation marks that is no quotation is searched for them, too.
    """
    position = 0
    while token := _TOKEN.search(text, position):
        is_quoted = token.lastgroup in _QUOTATIONS
        if is_quoted and not _is_quotation(token):
            position = token.start() + 1
        else:
            position = token.end()
            yield token


def _ends_sentence(token: re.Match[str]) -> bool:
    kind = token.lastgroup or ""
    if kind not in _QUOTATIONS:
        return kind == "end"
    return token[kind][-1] in ".!?" and _CAPITAL_NEXT.match(token.string, token.end()) is not None


def _is_quotation(token: re.Match[str]) -> bool:
    """Whether a token is long enough, and opened and closed like a quotation; scare quotes are too short."""
    kind = token.lastgroup or ""
    text = token[kind]
    if kind == "straight" and (text[-1].isspace() or _WORD_CHARACTER.match(token.string, token.end())):
        return False
    words = sum(_LETTER_OR_DIGIT.search(word) is not None for word in text.split())
    return words >= _FEWEST_WORDS or (words > 0 and len(text) >= _FEWEST_CHARACTERS)


# --- evidence ------------------------------------------------------------------------------------

_USED_AS_WORD = re.compile(rf"(?<![\w.-])E{_NUMBER}(?![\w)\]-])")


class _Shown:
    """The evidence that the judge saw, with each part normalised once."""

    def __init__(self, evidence: FittedContext) -> None:
        self._evidence = evidence
        self._entries: dict[str, str] = {}
        self._words_by_entry: dict[str, frozenset[str]] = {}

    def cited(self, sentence: _Sentence) -> tuple[str, ...]:
        """The ids in the sentence that are citations."""
        return tuple(e for e in sentence.ids if self.has_entry(e) or e not in self._used_as_words)

    def has_entry(self, entry: str) -> bool:
        return entry in self._evidence.entries

    def holds(self, citation: _Citation) -> bool:
        """
        Whether the entry exists, or a named entry contains the quotation; without ids any entry may.
        """
        if citation.quotation is None:
            return self.has_entry(citation.ids[0])
        pieces = _pieces(citation.quotation)
        texts = map(self._entry, citation.ids) if citation.ids else self._everything
        return any(_contains_in_order(pieces, text) for text in texts)

    def failure(self, citation: _Citation) -> FailedCitation:
        """A citation that does not hold, with the reason."""
        ids, quotation = citation
        entry = ", ".join(ids[:_MOST_IDS]) or None
        if quotation is None:
            return FailedCitation(entry, None, "no_such_entry")
        kept = one_line(quotation)
        kept = kept if len(kept) <= _MOST_CHARACTERS else f"{kept[: _MOST_CHARACTERS - 1]}…"
        pieces, words = _pieces(quotation), _words(_normalised(kept))
        # Without an id, all entries have been searched already.
        others = self._evidence.entries if ids else ()
        found_in = next((other for other in others if _contains_in_order(pieces, self._entry(other))), None)
        if ids and not self.has_entry(ids[0]):
            return FailedCitation(entry, kept, "no_such_entry", found_in)
        if found_in:
            return FailedCitation(entry, kept, "other_entry", found_in)
        nearest = max(ids or self._evidence.entries, key=lambda e: len(words & self._words_of(e)), default="")
        if words and len(words & self._words_of(nearest)) >= len(words) * _WORDS_OF_PARAPHRASE:
            return FailedCitation(entry, kept, "paraphrase", nearest)
        return FailedCitation(entry, kept, "not_there")

    def _entry(self, entry: str) -> str:
        """An entry's normalised text; empty where there is no such entry."""
        if entry not in self._entries:
            # Analyses also quote an entry's heading: `Tool call kubectl.get`.
            shown = self._evidence.entry(entry) or ""
            self._entries[entry] = _normalised(shown.removeprefix(f"[{entry}] "))
        return self._entries[entry]

    def _words_of(self, entry: str) -> frozenset[str]:
        if entry not in self._words_by_entry:
            self._words_by_entry[entry] = _words(self._entry(entry))
        return self._words_by_entry[entry]

    @cached_property
    def _everything(self) -> Sequence[str]:
        """All entries; the text is cut at their headings, because a quotation may not span entries."""
        texts = (self._evidence.alert, self._evidence.conversation)
        return [_normalised(part) for text in texts for part in re.split(r"(?m)^(?=\[E[0-9]+\] )", text)]

    @cached_property
    def _used_as_words(self) -> frozenset[str]:
        return frozenset(_USED_AS_WORD.findall(f"{self._evidence.alert}\n{self._evidence.conversation}"))


_SAME = str.maketrans('"‘’‚‛“”„‟«»‹›‐‑‒–—−', "'" * 13 + "-" * 6)
_ESCAPE, _ESCAPED_SPACE = re.compile(r"\\(?=['\\/])"), re.compile(r"\\[nrt]")
_DECORATION = re.compile(
    r"(?=[*`_'])(?:[*`]++(?!\w)|(?<![\w*`])[*`]++|(?<!\w)_++|(?<!_)_++(?!\w)|(?<!\w)'|'(?!\w))"
)
_BLOCK_MARKS = "-+•|>#"
_ELLIPSIS = re.compile(r"[\[(]?\.{3,}[\])]?")
_AT_ENDS = " .,;:!?()[]{}"
_WORD_CHARACTER, _LETTER_OR_DIGIT = re.compile(r"\w"), re.compile(r"[^\W_]")
_WORD = re.compile(r"\w+")
# Source: quotations in recorded judgements. With every fifth word changed all 123 reach this share in their
# entry, and 8 among 136 do in an entry from another session.
_WORDS_OF_PARAPHRASE = 2 / 3
_REST_OF_WORD = re.compile(r"\w*+")


def _normalised(text: str) -> str:
    """Text without differences in white space, case, quotation marks, dashes and Markdown."""
    text = text.replace('"', "'") if text.isascii() else unicodedata.normalize("NFKC", text).translate(_SAME)
    text = _ESCAPED_SPACE.sub(" ", _ESCAPE.sub("", text))
    text = _DECORATION.sub("", text).casefold()
    return " ".join([word for word in text.split() if word.strip(_BLOCK_MARKS)])


def _pieces(quotation: str) -> list[str]:
    """Normalised parts between the ellipses in a quotation."""
    return [piece for p in _ELLIPSIS.split(_normalised(quotation)) if (piece := p.strip(_AT_ENDS))]


def _words(normalised: str) -> frozenset[str]:
    return frozenset(_WORD.findall(normalised))


def _contains_in_order(pieces: Sequence[str], text: str) -> bool:
    """Whether there are pieces and the text contains them all in this order."""
    position = 0
    for piece in pieces:
        start = _find_whole(piece, text, position)
        if start < 0:
            return False
        position = start + len(piece)
    return bool(pieces)


def _find_whole(piece: str, text: str, position: int) -> int:
    """Index at which the piece cuts no word or number in the text; -1 where there is none."""
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
