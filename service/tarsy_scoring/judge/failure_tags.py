"""
Which failures of a vocabulary the judge asserts, and does not merely name, deny or ask about.

The terms are found here, and the text cut into sentences that know what they hang on: a list item, a table
cell, an answer. Whether a sentence asserts or denies them is told by `negation`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tarsy_scoring.judge.negation import Scope, read_sentence
from tarsy_scoring.judge.retraction import ANSWER, FIRST_MARK, MARK, TERM
from tarsy_scoring.timeline.text import without_invisible


def find_failure_tags(analysis: str, vocabulary: Iterable[str]) -> list[str]:
    """
    The terms that the analysis asserts, in the order of the vocabulary, each once.

    Only whole terms count, in whatever case and decoration. One sentence that asserts a term is enough,
    whatever others say of it. A bare list of all terms of a vocabulary of four or more is taken for a
    quotation of the vocabulary. Linear in the length of the analysis.

    Args:
        vocabulary: Identifiers such as `wrong_conclusion`.
    """
    terms = list(dict.fromkeys(vocabulary))
    if not terms:
        return []
    marks = {term: chr(FIRST_MARK + number) for number, term in enumerate(terms)}
    text = _mark_terms(analysis, {term.lower(): mark for term, mark in marks.items()})
    if not any(mark in text for mark in marks.values()):
        return []
    asserted = set(_asserted_marks(_sentences(_blocks(text)), frozenset(marks.values())))
    return [term for term in terms if marks[term] in asserted]


# --- from text to sentences ----------------------------------------------------------------------------

_ESCAPES_AND_HTML = re.compile(r"\\(?=[_*`\[\]-])|</?[A-Za-z]{1,10}>|\r(?=\n)")
_STRUCK_OUT = re.compile(rf"{MARK}|~~[^~\n]{{1,400}}~~")
_PLAIN = str.maketrans("’‘“”[]\r\u2028", "''\"\"()\n\n") | {ord("—"): " - ", ord("–"): " - ", ord("→"): "->"}
_ABBREVIATION = re.compile(r"\b(?:i\.e\.|e\.g\.|cf\.|vs\.|etc\.)")


def _mark_terms(analysis: str, marks: dict[str, str]) -> str:
    """Plain text in lower case, in which each term is its mark."""
    text = _STRUCK_OUT.sub(" ", _ESCAPES_AND_HTML.sub("", without_invisible(analysis)).translate(_PLAIN).lower())
    text = _ABBREVIATION.sub(lambda m: {"i.e.": "namely", "e.g.": "such as"}.get(m[0], m[0][:-1]), text)
    # A hyphen joins (`non-X`, `X-free`), and so does a dot (`tags.X`, `X.py`); underscores may be emphasis.
    names = "|".join(re.escape(term) for term in marks)
    whole = rf"(?<![\w!¬])(?<!\w[-.])(?P<emphasis>_{{0,3}})(?P<term>{names})(?P=emphasis)(?!\w)(?![-.]\w)"
    return re.sub(whole, lambda m: marks[m["term"]], text)


@dataclass(slots=True)
class _Block:
    """A heading, a list item, a paragraph, or a term in a table with what the table answers to it."""

    lines: list[str]
    indent: int = 0
    is_item: bool = False
    is_cell: bool = False
    is_heading: bool = False
    is_void: bool = False
    """Its box is not checked, or it heads a table."""

    @property
    def leads_in(self) -> bool:
        return (self.is_heading or self.lines[-1].endswith(":")) and _OTHER_WORD.search(self.lines[-1]) is not None


_BLOCK_MARKS = re.compile(
    r"(?P<indent>[ \t>]*)(?P<heading>#{1,6}[ \t]+)?(?P<item>(?:(?:[+•*-]|[0-9]{1,3}[.)])[ \t]+)*)"
    r"(?P<box>\([ x-]?\)(?=\s)|[☐☑☒✓✔✅✗✘✖❌](?=\s))?"
)
_UNCHECKED = ("( )", "()", "(-)", "☐", "✗", "✘", "✖", "❌")
_BOLD_LINE = re.compile(r"(\*\*|__)[^*]+\1:?")
_TABLE_RULE = re.compile(r"[|:\s-]+")
_LABELLED = re.compile(rf"\W{{0,6}}(?:{MARK}|[\w/-]+(?: [\w/-]+){{0,3}})\W{{0,4}}[:=]")
_LABEL_AND_ANSWER = re.compile(r"[^:=|]{1,60}[:=]\s*\S+(?: \S+)?")
_EMPHASIS = re.compile(r"[*`\"{}]|(?<!\w)'|'(?!\w)|(?<!\w)_++|(?<!_)_++(?!\w)")
_QUOTED = re.compile(r'"([^"\n]{1,400})"')
_OTHER_WORD = re.compile(r"\b(?!(?:and|or|nor|tags?|labels?|failures?|modes?)\b)[a-z]{2,}")


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    row: list[_Block] = []
    is_open = False
    for line in text.split("\n"):
        marks = _BLOCK_MARKS.match(line)
        assert marks is not None  # it matches nothing at all
        rest = _without_speech(line[marks.end() :].strip())
        plain = " ".join(_EMPHASIS.sub("", rest).split())
        if not plain:
            is_open = False
        elif rest.startswith("|") or " | " in rest:
            if _TABLE_RULE.fullmatch(rest):
                for cell in row:
                    cell.is_void = True
            row = _cells(plain)
            blocks += row
            is_open = False
        elif is_open and not (marks["heading"] or marks["item"] or marks["box"] or _LABELLED.match(plain)):
            blocks[-1].lines.append(plain)
        else:
            is_heading = bool(marks["heading"] or _BOLD_LINE.fullmatch(rest))
            is_item = bool(marks["item"] or marks["box"])
            is_void = marks["box"] in _UNCHECKED
            blocks.append(_Block([plain], len(marks["indent"]), is_item, is_heading=is_heading, is_void=is_void))
            is_open = not (is_heading or plain.endswith(":") or _LABEL_AND_ANSWER.fullmatch(plain))
    return blocks


def _without_speech(line: str) -> str:
    """Take the terms out of longer quotations: those are somebody else's words. A quoted term alone is decorated."""
    return _QUOTED.sub(lambda m: TERM.sub(" ", m[0]) if _OTHER_WORD.search(m[1]) else m[0], line)


def _cells(row: str) -> list[_Block]:
    """A term with the next cell that is an answer (`| X | E12 | no |`), else with the one in front of it."""
    cells = [cell.strip() for cell in row.split("|")]
    blocks, answer = [], ""
    for before, cell in zip(["", *cells][-2::-1], reversed(cells), strict=True):
        if TERM.search(cell):
            told = answer or (before if ANSWER.fullmatch(before) else "")
            blocks.append(_Block([f"{cell}: {told}" if told else cell], is_cell=True))
        elif ANSWER.fullmatch(cell):
            answer = cell
    return blocks[::-1]


@dataclass(slots=True)
class _Sentence:
    text: str
    block: _Block
    is_first: bool
    next: str = ""
    """What follows, where it may be the answer to this sentence."""


_SENTENCE_END = re.compile(r"(?<=[.!?])[)']*\s+")


def _sentences(blocks: Sequence[_Block]) -> list[_Sentence]:
    sentences = [
        _Sentence(text, block, number == 0)
        for block in blocks
        for number, text in enumerate(_SENTENCE_END.split(" ".join(block.lines)))
        if text
    ]
    for this, following in pairwise(sentences):
        is_beside = following.block.is_cell or (following.block.is_item and following.block.indent <= this.block.indent)
        if this.block is following.block or not is_beside:
            this.next = following.text
    return sentences


# --- from sentences to assertions ----------------------------------------------------------------------


def _asserted_marks(sentences: Sequence[_Sentence], vocabulary: frozenset[str]) -> Iterator[str]:
    lead: _Block | None = None
    denial: Scope | None = None
    for sentence in sentences:
        block = sentence.block
        if lead and sentence.is_first and not _hangs_on(block, lead):
            lead = denial = None
        if not TERM.search(sentence.text) and not block.leads_in:
            continue
        reading = read_sentence(
            sentence.text,
            sentence.next,
            is_first=sentence.is_first,
            denial=denial if sentence.is_first else None,
        )
        for run, is_asserted in reading.runs:
            if is_asserted and not block.is_void and not (len(vocabulary) >= 4 and vocabulary <= set(run)):
                yield from run
        if block.leads_in and block is not lead:
            lead, denial = block, reading.leading_on


def _hangs_on(block: _Block, lead: _Block) -> bool:
    """Items below a line that leads in to them, and terms that stand there alone."""
    if block.is_item:
        return not lead.is_item or block.indent > lead.indent
    return not any(_OTHER_WORD.search(line) for line in block.lines)
