"""
Finds the failures that an analysis asserts, as opposed to those that it denies, asks about or only names.

It reads cues and their scopes, as NegEx does: a cue (`no sign of X`) denies the terms behind it as far as its
scope reaches. An answer behind a term (`X: none`, `X was ruled out`) denies that term. Only the form of a
sentence is read: an explanation that refutes a term without a cue is not recognised.

Source: Chapman et al., A Simple Algorithm for Identifying Negated Findings and Diseases in Discharge
Summaries, 2001.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tarsy_scoring.judge.read import cues
from tarsy_scoring.judge.read.cues import TERM, X
from tarsy_scoring.timeline.text import without_invisible


def find_failure_tags(analysis: str, vocabulary: Iterable[str]) -> list[str]:
    """
    The terms that the analysis asserts, in the order of the vocabulary, each once.

    Only whole terms count, in any case and decoration. One assertion is enough, whatever other sentences
    deny. A list of all terms of a vocabulary of four or more is taken for a quotation of the vocabulary.
    Linear in the length of the analysis.

    Args:
        vocabulary: Identifiers such as `wrong_conclusion`.
    """
    terms = list(dict.fromkeys(vocabulary))
    # Each term becomes one private character, so that no pattern depends on the vocabulary.
    marks = {term: chr(cues.FIRST_MARK + number) for number, term in enumerate(terms)}
    text = _mark_terms(analysis, {term.lower(): mark for term, mark in marks.items()}) if terms else ""
    if not TERM.search(text):
        return []
    asserted = set[str]()
    for sentence in _sentences(text):
        for run in _asserted_runs(sentence):
            if len(terms) < 4 or len(set(run)) < len(terms):
                asserted |= set(run)
    return [term for term in terms if marks[term] in asserted]


# --- from text to sentences ----------------------------------------------------------------------------

_PLAIN = str.maketrans("’‘“”[]\r\u2028", "''\"\"()\n\n") | {ord("—"): " - ", ord("–"): " - "}
_MARKUP = re.compile(rf"\\(?=[_*`\[\]-])|</?[A-Za-z]{{1,10}}>|\r(?=\n)|{X}")
_DECORATION = re.compile(r"[*`\"{}#>]|(?<!\w)[_']+|[_']+(?!\w)")
_STRUCK_OUT = re.compile(r"~~[^~\n]{1,400}~~")
_QUOTED = re.compile(r'"[^"\n]{1,400}"')
_ITEM = re.compile(r"\s*(?:#+|(?:[-+•*]|[0-9]{1,3}[.)])\s)+\s*")
_UNCHECKED = re.compile(r"[\s*+•-]*(?:\([ -]?\)|[☐✗✘✖❌])\s")
_HEADING = re.compile(r"\s*(?:#|(?:\*\*|__)[^*_]+(?:\*\*|__):?\s*$)")
_TABLE_RULE = re.compile(r"[|:\s-]+")
# A paragraph that is broken into lines. A line with a label (`X: no`) or with terms alone is one of its own.
_BROKEN_LINE = re.compile(
    r"(?<=[a-z,])\n(?=[^\n:=|]{0,60}(?:[a-z]{2}|\.$)[^\n:=|]*$)(?!\s*(?:[-+•*#>|(☐✗✘✖❌]|[0-9]{1,3}[.)]))",
    re.MULTILINE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)[)']*\s+")
_OTHER_WORD = re.compile(r"\b(?!(?:and|or|nor|tags?|labels?|failures?|modes?)\b)[a-z]{2,}")


def _mark_terms(analysis: str, marks: dict[str, str]) -> str:
    """Plain text in lower case, in which each term is its mark."""
    text = _MARKUP.sub("", without_invisible(analysis)).translate(_PLAIN).lower()
    names = "|".join(map(re.escape, marks))
    # A hyphen or a dot makes another word (`non-X`, `X.py`); underscores around a term are emphasis.
    whole = rf"(?<![\w!¬])(?<!\w[-.])(?P<emphasis>_{{0,3}})(?P<term>{names})(?P=emphasis)(?!\w)(?![-.]\w)"
    text = _STRUCK_OUT.sub(" ", re.sub(whole, lambda m: marks[m["term"]], text))
    # A longer quotation is the text of another author; quotation marks around a term alone are decoration.
    return _QUOTED.sub(lambda m: TERM.sub(" ", m[0]) if _OTHER_WORD.search(m[0]) else m[0], text)


@dataclass(slots=True)
class _Sentence:
    text: str
    lead: str = ""
    """The line that introduces it, such as `Not observed:`."""
    is_beside: bool = False
    """Whether it is a list item or a table cell, and so no answer to the sentence in front of it."""
    next: str = ""
    """The sentence behind it, where that may be its answer, as `None found.` behind `X:`."""


def _sentences(text: str) -> list[_Sentence]:
    found: list[_Sentence] = []
    lead, lead_depth, last_depth, row_start = "", 0, 0, 0
    for line in _BROKEN_LINE.sub(" ", text).split("\n"):
        item = _ITEM.match(line)
        plain = _DECORATION.sub("", line[item.end() if item else 0 :]).strip()
        if plain and _TABLE_RULE.fullmatch(plain):
            del found[row_start:]  # the row above a rule is the heading of a table
        if not plain or _TABLE_RULE.fullmatch(plain) or _UNCHECKED.match(line):
            continue
        is_heading = _HEADING.match(line) is not None
        depth = -1 if is_heading else len(line) - len(line.lstrip(" \t>")) + (item is not None)
        if lead and depth <= lead_depth and (item or _OTHER_WORD.search(plain)):
            lead = ""
        row_start = len(found)
        if line.lstrip().startswith("|") or " | " in line:
            found += _cells(plain)
            continue
        first, *others = _SENTENCE_END.split(plain)
        is_beside = item is not None and not is_heading and depth <= last_depth
        found += [_Sentence(first, lead, is_beside), *map(_Sentence, others)]
        last_depth = depth
        if plain.endswith(":") or is_heading:
            lead, lead_depth = plain, depth
    for this, following in pairwise(found):
        this.next = "" if following.is_beside else following.text
    return found


def _cells(row: str) -> Iterator[_Sentence]:
    """The terms of a table's row, each with the answer of the row: `| X | E12 | no |` is read as `X: no`."""
    cells = [cell.strip() for cell in row.split("|") if cell.strip()]
    answer = next((cell for cell in cells if cues.ANSWER.fullmatch(cell)), "")
    return (_Sentence(f"{cell}: {answer}", is_beside=True) for cell in cells if TERM.search(cell))


# --- from sentences to assertions ----------------------------------------------------------------------


@dataclass(slots=True)
class _Scope:
    """
    The reach of a cue, and what has been read within it. A sentence is read from left to right.

    A `far` scope ends with its clause. A `none` one passes verbs as well: `None of the claims is X`. A `near`
    one ends at a word that is not in `CARRYING`, and an `all` one (`if`) with the sentence.
    """

    reach: str
    opens_sentence: bool
    has_substance: bool = False
    """A word outside of `CARRYING` was read; the cue denies that word."""
    has_terms: bool = False
    is_suspended: bool = False
    """Whether a comma behind substance has suspended the denial, until `or` shows that the list goes on."""
    last_word: str = ""

    @property
    def is_bare(self) -> bool:
        return not (self.has_substance or self.has_terms)

    @property
    def leads_on(self) -> bool:
        """Whether it passes a colon or a bracket: `No sign of: X`, but not `It was not verified: X`."""
        return self.is_bare and (self.opens_sentence or self.last_word in cues.LEADING_ON)


def _asserted_runs(sentence: _Sentence) -> Iterator[str]:
    """Terms that a sentence asserts; those that share one statement (`X, Y and Z`) in one string."""
    text, position = sentence.text, 0
    scope = _read_on(sentence.lead.rstrip(": "), None, is_start=True)
    if scope and not scope.leads_on:
        scope = None
    while run := cues.RUN.search(text, position):
        scope = _read_on(text[position : run.start()], scope, is_start=position == 0)
        is_denied, position = _denied_behind(text, run, sentence.next)
        if text.rstrip(" )").endswith("?"):
            is_asserted = cues.YES_NEXT.match(sentence.next) and not (
                scope and scope.reach in ("none", "near")
            )
        elif cues.CONFIRMED.match(text, run.end()):
            is_asserted = scope is None or scope.reach == "all"
        elif scope and not scope.is_bare and cues.HOLDS.match(text, run.end()):
            is_asserted = True
        else:
            is_asserted = not is_denied and (scope is None or scope.is_suspended)
        if scope:
            scope.has_terms = True
        if is_asserted:
            yield "".join(TERM.findall(run[0]))


def _read_on(text: str, scope: _Scope | None, *, is_start: bool) -> _Scope | None:
    """Read a text without terms; returns the scope that is open at its end."""
    has_subject = not is_start
    outside: list[_Scope | None] = []  # the scopes around the brackets that are open
    position = 0
    while token := cues.TOKEN.search(text, position):
        kind, position = token.lastgroup or "", token.end()
        if kind in ("none", "far", "near", "all", "maybe"):
            scope = _open(kind, scope, opens_sentence=not has_subject)
            if aside := cues.ASIDE.match(text, position):
                position = aside.end()
        elif kind == "open":
            outside.append(scope)
            goes_on = scope and (
                scope.leads_on or scope.reach == "all" or text.startswith(("or ", "nor "), position)
            )
            scope = scope if goes_on else None
        elif kind == "close":
            scope = outside.pop() if outside else scope
        elif kind == "word" and scope:
            scope = _pass_word(scope, token[0])
        elif kind != "quiet" and scope:
            scope = _pass_mark(scope, kind, text[position:])
        has_subject = (
            has_subject or (kind == "word" and token[0] not in cues.CARRYING)
        ) and kind != "semicolon"
    return scope


def _open(kind: str, scope: _Scope | None, *, opens_sentence: bool) -> _Scope | None:
    if kind == "maybe":  # a mere mention takes nothing back that is denied already
        return scope or _Scope("near", opens_sentence)
    if scope and scope.reach in ("far", "none") and kind == "near" and scope.is_bare:
        return None  # the denial of a denial: `did not avoid X`
    return scope if scope and scope.reach == "all" else _Scope(kind, opens_sentence)


def _pass_word(scope: _Scope, word: str) -> _Scope | None:
    """The scope behind a word; None where the word ends it."""
    is_carrying = word in cues.CARRYING
    if (
        scope.reach == "far"
        and word in cues.VERBS
        and scope.has_substance
        and scope.last_word not in cues.RELATIVE
    ):
        return None  # `Never asking is X`: the denial belongs to the subject
    if scope.reach == "near":
        is_predicate = word in cues.VERBS and scope.last_word not in ("", "that", "which")
        if not is_carrying or is_predicate or (scope.has_terms and word in cues.PRONOUNS):
            return None
    scope.has_substance |= not is_carrying
    if word in cues.OPINIONS and scope.reach == "far":
        scope.reach = "none"  # `I do not think that it is X`
    scope.last_word = word
    return scope


def _pass_mark(scope: _Scope, kind: str, rest: str) -> _Scope | None:
    """The scope behind punctuation, a conjunction or the beginning of a clause; None where that ends it."""
    if kind == "end" or (kind == "colon" and not scope.leads_on):
        return None
    if scope.reach == "all":
        return scope
    if kind == "clause" or (
        kind == "semicolon" and (scope.has_substance or not scope.has_terms or rest.strip())
    ):
        return None
    if kind == "or":
        scope.is_suspended = False
    elif kind == "comma":
        if not scope.has_terms and cues.ARTICLE_NEXT.match(rest):  # `, a clear X`
            return None
        scope.is_suspended = scope.has_substance
    return scope


def _denied_behind(text: str, run: re.Match[str], following: str) -> tuple[bool, int]:
    """Whether the words behind a run of terms deny it, and the position from which to read on."""
    end = run.end()
    if cues.QUIET_BEHIND.match(text, end):
        return False, end
    if found := cues.DENIED_BEHIND.match(text, end):
        return True, found.end()
    next_term = TERM.search(text, end)
    rest = text[end : next_term.start() if next_term else len(text)]
    if cues.SEPARATOR.match(rest) and cues.DENIED_AT_END.search(rest):
        return True, end
    is_label = run.start() < 5 or not rest.strip(" .:?!)")
    return is_label and cues.NO_NEXT.match(following) is not None, end
