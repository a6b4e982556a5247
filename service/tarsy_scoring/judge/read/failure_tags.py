"""
Finds the failures that an analysis asserts, as opposed to those that it denies, asks about or only names.

A cue before a term (`no sign of X`) denies the term as far as the clause reaches, as in NegEx. An answer
behind a term (`X: none`, `X was ruled out`) denies that term. Only a sentence's form is read: an
explanation that refutes a term without a cue is not recognised.

Source: Chapman et al., A Simple Algorithm for Identifying Negated Findings and Diseases in Discharge
Summaries, 2001.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tarsy_scoring.timeline.text import without_invisible

# Each term becomes one private character, so that no pattern depends on the vocabulary.
_FIRST_MARK = 0xF0000
_MARKS = f"{chr(_FIRST_MARK)}-\U000ffffd"
_TERM = re.compile(f"[{_MARKS}]")
_RUN = re.compile(  # terms that share a statement: `X, Y and Z`
    rf"[{_MARKS}](?:[\s,/&+]*(?:(?:and/or|and|or|nor|as well as|plus)[\s,]+)?(?:(?:an?|any|even"
    rf"|the) )?[{_MARKS}])*"
)


def find_failure_tags(analysis: str, vocabulary: Iterable[str]) -> list[str]:
    """
    The terms that the analysis asserts, in vocabulary order, each once.

    Only whole terms count, in any case and decoration. One assertion is enough, whatever other sentences
    deny. A list with all terms, if there are four or more, is taken for a quotation from the vocabulary.
    Linear in the analysis' length.

    Args:
        vocabulary: Identifiers such as `wrong_conclusion`.
    """
    terms = list(dict.fromkeys(vocabulary))
    marks = {term: chr(_FIRST_MARK + number) for number, term in enumerate(terms)}
    text = _mark_terms(analysis, {term.lower(): mark for term, mark in marks.items()}) if terms else ""
    if not _TERM.search(text):
        return []
    asserted = set[str]()
    for sentence, following in pairwise([*_sentences(text), _TermSentence("")]):
        answer = "" if following.is_item or following.text.endswith(":") else following.text
        for run in _RUN.finditer(sentence.text):
            named = set(_TERM.findall(run[0]))
            if (len(terms) < 4 or len(named) < len(terms)) and _is_asserted(sentence, run, answer):
                asserted |= named
    return [term for term in terms if marks[term] in asserted]


# --- from text to sentences ----------------------------------------------------------------------------

_PLAIN = str.maketrans("’‘“”[]\r\u2028", "''\"\"()\n\n") | {ord("—"): " - ", ord("–"): " - "}
_MARKUP = re.compile(rf"\\(?=[_*`\[\]-])|</?[A-Za-z]{{1,10}}>|\r(?=\n)|[{_MARKS}]")
_DECORATION = re.compile(r"[*`\"{}#>]|(?<!\w)[_']+|[_']+(?!\w)")
_STRUCK_OUT = re.compile(r"~~[^~\n]{1,400}~~")
_QUOTED = re.compile(r'"[^"\n]{1,400}"')
_OTHER_WORD = re.compile(r"\b(?!(?:and|or|nor|tags?|labels?|failures?|modes?)\b)[a-z]{2,}")
_ITEM = re.compile(r"\s*(?:[-+•*]|[0-9]{1,3}[.)])\s")
_HEADING = re.compile(r"\s*(?:#|\*\*[^*]+\*\*:?\s*$)")
_UNCHECKED = re.compile(r"[\s*+•-]*(?:\([ -]?\)|[☐✗✘✖❌])\s")
_BROKEN_LINE = re.compile(rf"^((?:[^:\n]|:[0-9])*[a-z,])\n(?=[a-z{_MARKS}][^:|\n]*$)", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)[)']*\s+|;\s*")


def _mark_terms(analysis: str, marks: dict[str, str]) -> str:
    """Plain text in lower case, in which each term is one character."""
    text = _MARKUP.sub("", without_invisible(analysis)).translate(_PLAIN).lower()
    names = "|".join(map(re.escape, marks))
    # A hyphen or a dot makes another word (`non-X`, `X.py`); underscores around a term are emphasis.
    whole = rf"(?<![\w!¬])(?<!\w[-.])(?P<emphasis>_{{0,3}})(?P<term>{names})(?P=emphasis)(?!\w)(?![-.]\w)"
    text = _STRUCK_OUT.sub(" ", re.sub(whole, lambda m: marks[m["term"]], text))
    # A longer quotation has another author; quotation marks around a term alone are decoration.
    return _QUOTED.sub(lambda m: _TERM.sub(" ", m[0]) if _OTHER_WORD.search(m[0]) else m[0], text)


class _TermSentence(NamedTuple):
    """A sentence, and the line that introduces its list (`Not observed:`)."""

    text: str
    lead: str = ""
    is_item: bool = False


def _sentences(text: str) -> list[_TermSentence]:
    found: list[_TermSentence] = []
    lead, lead_depth = "", 0
    for line in _BROKEN_LINE.sub(r"\1 ", text).split("\n"):
        item = _ITEM.match(line)
        plain = _DECORATION.sub("", line[item.end() if item else 0 :]).strip()
        if not plain or _UNCHECKED.match(line):
            continue
        if "|" in line:
            found += _cells(plain)
            continue
        is_heading = _HEADING.match(line) is not None
        depth = -1 if is_heading else len(line) - len(line.lstrip()) + (item is not None)
        if lead and depth <= lead_depth and (item or _OTHER_WORD.search(plain)):
            lead = ""
        first, *others = _SENTENCE_END.split(plain)
        found += [_TermSentence(first, lead, item is not None), *map(_TermSentence, others)]
        if plain.endswith(":") or is_heading:
            lead, lead_depth = plain, depth
    return found


def _cells(row: str) -> Iterator[_TermSentence]:
    """Terms in a table row, each with the row's answer: `| X | E12 | no |` is read as `X: no`."""
    cells = [cell.strip() for cell in row.split("|") if cell.strip()]
    answer = next((cell for cell in cells if _YES_OR_NO.fullmatch(cell)), "")
    return (_TermSentence(f"{cell}: {answer}", is_item=True) for cell in cells if _TERM.search(cell))


# --- cues ----------------------------------------------------------------------------------------------

# Contains a cue's word and denies nothing.
_QUIET = re.compile(
    r"(?:\bnot|n't|\bnever) (?:only|just|merely|simply|so much|(?:even |later )?(?:correct|revis|retract"
    r"|excus|admit)\w*)"
    r"|(?:\bnot|n't|\bnever) (?:avoid|prevent|escap|resist|exclud)\w*|\bnot (?:free|far) (?:of|from)"
    r"|\bnot without\b"
    r"|\bno (?:doubt|question|wonder|excuse|denying|less than|failure other)\b|\b(?:cannot"
    r"|can't) (?:be den|deny|but|help)\w*"
    r"|\b(?:nothing|none) (?:but|less than|short of)|\bwithout (?:a |any )?(?:doubt|question)"
    r"|\bfail\w* to (?:avoid|prevent)"
    r"|\b(?:should|could|would) have (?:been )?(?:avoided|prevented)|\b(?:even if|if anything"
    r"|would have to be called)\b"
    r"|\b(?:i|we)(?: would|'d) (?:also )?(?:call|tag|label|say|add)"
)
_DENYING = (
    r"\b(?:not|no|never|none|no one|nothing|neither|nor|cannot|without|zero|minus|hardly|scarcely|barely"
    r"|nowhere|unlike|against|unable|less|than"
    r"|lack(?:s|ed|ing)?|absen(?:t|ce)|free (?:of|from)|devoid|innocent|immune|avoid\w*|prevent\w*"
    r"|resist\w*|escap\w*|refrain\w*|withh[eo]ld\w*|omit\w*"
    r"|declin\w+|rul(?:e|es|ed|ing) out|reject\w*|dismiss\w*|exclud\w*|retract\w*|disprov\w*|refut\w*"
    r"|contradict\w*|clear(?:s|ed) (?:\w+ )?of|clear of"
    r"|rather than|instead of|in place of|far from|anything but|short of|opposed to|unassigned"
    r"|inapplicable|n/a|considered|weighed|thought about"
    r"|(?:little|insufficient|weak|few) (?:evidence|signs?|support|reasons?|grounds?)|(?:check|look|search"
    r"|screen|watch|ask)(?:s|ed|ing)? (?:for|whether|me)"
    r"|too \w+ (?:to|for)|(?:hard|difficult|unfair|wrong|premature|reluctant) to|hesitat\w+"
    r"|fail\w* to (?:qualify|amount|constitute)|accused)\b"
    r"|n't\b|(?<![\w.])0\b"
)
_DOUBTING = (
    r"\b(?:may|might|could|would|possibl[ey]|perhaps|maybe|potential(?:ly)?|almost|nearly|borderline"
    r"|risk(?:s|ed)?|suspicion|danger|border\w* on"
    r"|unlikely|doubtful|questionable|close to|regarding|as for|such as|e\.g\.,?)\b"
)
_NAMING = (
    r"\b(?:if|whether|unless|suppose|assuming|either|to be an?|vocabulary|one of|any of|defin\w+|cho(?:ose"
    r"|osing|sen)|tags? like"
    r"|(?:possible|available|allowed|valid|known) (?:failure )?(?:tags?|modes?|labels?)"
    r"|list of (?:failure )?tags)\b"
)
_CUE = re.compile(f"(?P<naming>{_NAMING})|{_DENYING}|{_DOUBTING}")
_REACH = 300  # characters read around a term
_OF_SUBJECTS = frozenset({"no", "no one", "nothing", "none", "neither", "nor", "unlikely", "doubtful"})
_ASIDE = re.compile(r"^, [^,;:.()]{0,40},")  # `not, in my view, X`
_LEADS_IN = re.compile(
    r" ?(?:(?:of|the|these|following|failures?|tags?|labels?|modes?|applicable|observed|assigned"
    r"|signs?) ?)*[:(]"
)
_END = re.compile(
    r"[:;]|\((?!or )| - |->|→|=|, (?:there|the agent|it|only|i|we|while)\b"
    r"|\b(?:but|however|although|though|because|since|so|hence|therefore|thus|yet|except|besides|due to"
    r"|which|other than)\b"
)
_SERIES = re.compile(r"^[^,]*(?:, [^,]{1,30})*,? or [^,]*$")
# What a sentence concludes from a denial: `The lack of logs is X`, `not reading the logs made this X`.
_CONCLUDES = re.compile(
    r" \w+(?: \w+)*,? (?:is|was|are|were|it is|and is)(?: as)?(?: an?| the| this)? $| only $"
    r"|\w .*(?:i assign|given the) $"
    r"|(?: \w+){2,} (?:makes?|made|counts as|leads? to|led to|has|ended in|jump(?:s|ed) to|reached|drew"
    r"|left|leaves|shows|and)(?: an?| the| this)? $"
)
_OPINION = re.compile(
    r" (?:\w+ )?(?:think|believe|say|see|find|mean|prove|suggest|indicate|claim|argue|agree|consider"
    r"|convinced|clear|true|sure|call|be|been|what)\b"
)

# --- answers behind a term -----------------------------------------------------------------------------

_FOUND = (
    r"(?:found|observed|present|seen|detected|identified|applicable|appl(?:y|ied)|occur(?:red)?|evident"
    r"|noted|triggered|assigned|set|warranted|here"
    r"|supported|justified|the case|an issue)"
)
_NEGATIVE = (
    r"(?:none|nope|no|zero|n/a|not|never|neither|nothing|false|null|absent|negative|avoided|ruled out"
    r"|excluded|unlikely|unfounded|rejected|dismissed"
    r"|unchecked|considered|unknown|possibly|maybe|perhaps|unclear|clean|clear|pass(?:ed)?|ok"
    r"|0(?:/[0-9]{1,3})?|[✗✘✖❌☐👎]|\(\s?\)|-)"
)
_YES_OR_NO = re.compile(rf"yes|true|x|applies|✓|✅|☑|{_NEGATIVE}|not {_FOUND}|{_FOUND}")
_STOP = r"(?=\s*(?:$|[.,;!?)(|/:]|-+\s|->))"
_SEPARATOR = (
    r"(?:\s?\))?\s*(?:->|→|[:=|,?(]|-+(?=[\s>]))[\s:=(>-]*"
    r"(?:(?:is )?(?:present|applicable|observed|found|status|verdict|answer)\s?[:=?]\s?)?"
)
_DENIED_BEHIND = re.compile(
    rf"(?:\s(?:tags?|labels?|modes?|failures?)\b)?(?:\s?\([^()]{{1,200}}\))?(?:{_SEPARATOR}(?:"
    r"[✗✘✖❌☐👎]|considered\b|(?:(?:it|this|i|we|there|that|the|i'd) )?(?:(?:is|was|does|did|found|see|saw"
    r"|could|has|have) )?(?:been )?"
    rf"(?:{_NEGATIVE}{_STOP}|(?:\w+ )?(?:not|n't|never) (?:been )?{_FOUND}(?! in e[0-9])|\w+n't {_FOUND}"
    rf"|\w+ not(?=\s*$|\.)|not (?:really|quite|in this)"
    rf"|none (?:of (?:these|them|it|the kind)|that|appl|{_FOUND})|cannot|nothing of|say no|answer is no"
    rf"|did not (?:find|see)|neither appl"
    r"|(?:no|zero|0) (?:\w+ ){0,2}(?:signs?|evidence|indications?|instances?|traces?|issues?|problems?"
    r"|cases?|missed|missing)\b(?! line)))"
    r"|(?:\s?\)|, which)?\s(?!but|and|while|or|as|because|in\b|with)(?:\w+\s){0,3}?(?:not|never|cannot"
    r"|nowhere|hardly|neither|[a-z]{1,8}n't|no longer|no)\b"
    r"(?! (?:only|just|correct|revis|excus|support |compensat|due|carry|back|affect|a small|a minor|matter"
    r"|help|be (?:ignored|denied|excused|overlooked)))"
    r"|\s(?:is|was|be|been|are|were|seems?) (?:clearly |therefore |thus |also |really |both |all "
    r"|successfully )?(?:absent|lacking|weak|false|null|inapprop\w+"
    r"|avoided|ruled out|excluded|un(?:founded|warranted|justified|likely|checked)|inapplicable|dismissed"
    r"|rejected|refuted|doubtful|debatable|considered|checked"
    r"|too (?:strong|harsh)|an? stretch|off the table)\b|\s(?:tag |label )?(?:out|inapplicable"
    r"|unchecked)\b|\s?[☐✗✘✖❌👎]|\s?\(\s?\)"
    r"|\s(?:would|might|may|could)\b(?! (?:easily )?have been)|\s(?:\w+ )?(?:only |can |must "
    r"|should )(?:only )?(?:be|if|when)\b|\s(?:if|unless)\b(?! anything)"
    r"|\s(?:means?|refers? to|denotes?|describes?|is (?:when|for|used|defined|one of|an? \w+ (?:that"
    r"|for)))\b)"
)
_DENIED_AT_END = re.compile(
    rf"{_SEPARATOR}.*(?:(?:(?:does|do|did) not|doesn't|don't) apply|not applicable|so no|answer is no)$"
)
_CONFIRMED = re.compile(rf"{_SEPARATOR}(?:yes|true|present|applies|observed|found|confirmed|✓|✔|✅|☑){_STOP}")
_NO_NEXT = re.compile(
    rf"\W*(?:(?:present|applies): no|(?:not|never) {_FOUND}|{_NEGATIVE}{_STOP}|none (?:of|{_FOUND})"
    rf"|(?:there (?:is|was) )?no (?:evidence|sign|such)"
    r"|(?:it |this |they )?(?:does|did|do|is|was) not|i (?:found|saw|see) no)"
)
_YES_NEXT = re.compile(r"\W*(?:yes|indeed|definitely|certainly|clearly|it (?:does|did|was)|there was)\b")


def _is_asserted(sentence: _TermSentence, run: re.Match[str], answer: str) -> bool:
    """
    Whether a sentence asserts the terms in a run.

    Args:
        answer: The next sentence, if it may answer this one: `X:` and `None found.`
    """
    text, behind = sentence.text, sentence.text[run.end() : run.end() + _REACH].rstrip(" .")
    if text.rstrip(" )").endswith("?"):
        return _YES_NEXT.match(answer) is not None
    if _CONFIRMED.match(behind):
        return True
    if _DENIED_BEHIND.match(behind) or _DENIED_AT_END.match(behind):
        return False
    if not behind.strip(":") and _NO_NEXT.match(answer):
        return False
    before = _QUIET.sub(" ", text[max(run.start() - _REACH, 0) : run.start()])
    if _CUE.search(_QUIET.sub(" ", sentence.lead)) and not _END.search(before):
        return False
    return not any(_reaches(cue, before[cue.end() :]) for cue in _CUE.finditer(before))


def _reaches(cue: re.Match[str], gap: str) -> bool:
    """Whether a cue denies a term behind the gap."""
    if cue["naming"]:
        return True
    gap = _ASIDE.sub("", gap)
    gap = gap[lead_in.end() :] if (lead_in := _LEADS_IN.match(gap)) else gap
    *listed, last = gap.split(",")
    is_list = _TERM.search(gap) or _SERIES.search(gap) or not any(map(str.strip, listed))
    if gap.strip() == "," or _END.search(gap) or not is_list:
        return False
    return cue[0] in _OF_SUBJECTS or not _CONCLUDES.search(last) or _OPINION.match(gap) is not None
