"""
Finds the failures that an analysis asserts, as opposed to those that it denies, doubts or asks about.

The shipped prompts ask for terms of failures that happened and for no others, so a plain rule suffices: a cue
before a term (`no sign of X`) denies the term as far as the clause reaches, as in NegEx, and so does an answer
behind it (`X: none`, `X was ruled out`).

Source: Chapman et al., A Simple Algorithm for Identifying Negated Findings and Diseases in Discharge
Summaries, 2001.
"""

import re
from collections.abc import Iterable, Iterator

from tarsy_scoring.timeline.text import without_invisible

_QUOTATION_TERMS = 4  # so many terms, all of the vocabulary, in one sentence are a quotation from it
_REACH = 300  # characters read around a term


def find_failure_tags(analysis: str, vocabulary: Iterable[str]) -> list[str]:
    """
    The terms that the analysis asserts, in vocabulary order, each once.

    Only whole terms count, in any case and decoration. One assertion is enough, whatever other sentences
    deny. A sentence with all terms, if there are four or more, is taken for a quotation from the vocabulary.
    Linear in the analysis' length.

    Args:
        vocabulary: Identifiers such as `wrong_conclusion`.
    """
    terms = {term.lower(): term for term in vocabulary}
    text = without_invisible(analysis).translate(_PLAIN).replace("\\", "").lower()
    whole = " ".join(_DECORATION.sub("", text).split())
    if not any(map(whole.__contains__, terms)):  # as in most: sentences take four times as long
        return []
    # A hyphen or a dot makes another word: `non-X`, `X.py`.
    names = "|".join(map(re.escape, terms))
    term = re.compile(rf"(?<![\w!¬])(?<!\w[-.])(?:{names})(?!\w)(?![-.]\w)")
    asserted = set[str]()
    for sentence in _sentences(text):
        found = list(term.finditer(sentence)) if any(map(sentence.__contains__, terms)) else []
        named = {each[0] for each in found}
        if sentence.endswith("?") or (len(terms) >= _QUOTATION_TERMS and len(named) == len(terms)):
            continue
        asserted |= {each[0] for each in found if not _is_denied(sentence, each, term)}
    return [original for lower, original in terms.items() if lower in asserted]


_PLAIN = str.maketrans("’‘“”", "''\"\"") | {ord("—"): " - ", ord("–"): " - "}
# The lookahead for the first character rejects most positions at once, here and below.
_DECORATION = re.compile(r"(?=[<*`\"{}#>_'])(?:</?[a-z]{1,10}>|[*`\"{}#>]|(?<!\w)[_']+|[_']+(?!\w))")
_BLOCK = re.compile(r"\n[ \t]*(?=\n|[-*+•|#>☐✗]|[0-9]{1,3}[.)]\s)")
_ITEM = re.compile(r"\s*(?:[-*+•☐✗]|[0-9]{1,3}[.)])\s")
_UNCHECKED = re.compile(r"\s*(?:[-*+•] )?(?:\[ \]|[☐✗])")
_SENTENCE_END = re.compile(r"(?=[)'\s;])(?:(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)']*\s+|;\s*)")


def _sentences(text: str) -> Iterator[str]:
    """Sentences without decoration; a line that introduces a list stands before each of its items."""
    lead = ""
    for block in _BLOCK.split(text):
        is_item = _ITEM.match(block)
        if _UNCHECKED.match(block):
            continue
        plain = " ".join(_DECORATION.sub("", block[is_item.end() if is_item else 0 :]).split())
        first, *others = _SENTENCE_END.split(plain)
        yield f"{lead} {first}" if is_item and lead else first
        yield from others
        if plain and not is_item:
            lead = plain[-_REACH:] if plain.endswith(":") else ""


_FOUND = (
    "found|observed|present|seen|detected|identified|applicable|appl(?:y|ied)|occur(?:red)?|evident|assigned"
)
# A list of absent things: `Not observed: X, Y`.
_DENIED_LIST = re.compile(rf"\b(?:not|none|never) (?:\w+ )?(?:{_FOUND})\W*:")
_CLAUSE_END = re.compile(
    r".*(?:[:;(]| - |->|→|, (?:the agent|it|i|we|there)\b"
    r"|\b(?:but|however|although|though|because|since|so|hence|therefore|thus|yet|except|which)\b)",
    re.DOTALL,
)
_CUE = re.compile(
    r"\b(?:not|no|never|none|nothing|neither|nor|cannot|without|zero|hardly|unable|against|less|free (?:of|from)"
    r"|(?:absence|lack) of(?: any)?(?=\W*$)|avoid\w*|prevent\w*|rul(?:e|es|ed|ing) out|reject\w*|exclud\w*"
    r"|rather than|instead of|opposed to|short of|clear of|fails? to|little|few|may|might|could|would|possibl[ey]"
    r"|perhaps|maybe|potential(?:ly)?|unlikely|doubtful|borderline|if|whether|either|considered)\b|n't\b|\b0\b"
)
_QUIET = re.compile(
    r"\bno (?:doubt|question|less than)|\b(?:not|n't) (?:only|just|merely)|\b(?:without|no) doubt"
)
_NEGATIVE = (
    r"(?:none|nope|no|zero|n/a|(?:\w+ )?not|false|absent|negative|avoided|ruled out|excluded|unlikely|rejected"
    rf"|dismissed|unclear|(?:not|never) (?:{_FOUND})|does not apply|0|-)"
)
_DENIED_BEHIND = re.compile(
    rf"\W*?(?:[:|=]|->|→| - )\W*{_NEGATIVE}\s*(?:$|[.,!)(|:-])"
    r"|\s?(?:is|was|are|were) (?:\w+ )?(?:not|nowhere|absent|avoided|ruled out|excluded|unfounded|rejected)\b"
    r"|\s?(?:isn't|wasn't|aren't|weren't|cannot|can not|can't)\b"
    rf"|\s?(?:does|did|do)(?: not|n't) (?:{_FOUND}|appear|arise|fit|hold)"
)


def _is_denied(sentence: str, found: re.Match[str], term: re.Pattern[str]) -> bool:
    if _DENIED_BEHIND.match(sentence[found.end() : found.end() + _REACH]):
        return True
    before = _QUIET.sub(" ", sentence[max(found.start() - _REACH, 0) : found.start()])
    if _DENIED_LIST.search(before):
        return True
    clause_end = _CLAUSE_END.match(before)
    clause = before[clause_end.end() if clause_end else 0 :]
    for cue in _CUE.finditer(clause):
        # A comma ends the reach, unless a list of terms goes on.
        gap = clause[cue.end() :]
        if "," not in gap or term.search(gap):
            return True
    return False
