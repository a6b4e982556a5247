"""
What is told of a term behind it: that it applies (`X: yes`), that it does not (`X was ruled out`), or nothing.

A definition (`X means that ...`) counts as a denial, since it names a term and asserts nothing.
"""

import re
from typing import Literal

Told = Literal["confirmed", "denied", "nothing"]

# A term is one character that no text holds, so that patterns need not know the vocabulary.
FIRST_MARK, LAST_MARK = 0xF0000, 0xFFFFD
MARKS = f"{chr(FIRST_MARK)}-{chr(LAST_MARK)}"
MARK = f"[{MARKS}]"
TERM = re.compile(MARK)


def told_behind(text: str, run: re.Match[str], following: str, *, is_first: bool) -> tuple[Told, int]:
    """
    What is told of the terms of a run behind them, and where to read on.

    Args:
        text: The sentence, as `failure_tags` makes it: in lower case, its terms as marks.
        following: The sentence behind it, where that may be the answer (`X?` and then `None found.`), else empty.
        is_first: Whether the sentence opens its paragraph, so that the terms may be a label of all that follows.
    """
    end = run.end()
    for skipped in (None, _TAG_NOUN, _REMARK):
        if skipped and (found := skipped.match(text, end)):
            end = found.end()
        if found := _BEHIND.match(text, end):
            return "confirmed" if found["confirmed"] else "denied", found.end()
    if _NOTHING_ELSE.match(text, end):  # `X.` and then `Not observed.`
        return "denied" if _NO_NEXT.match(following) else "nothing", run.end()
    if is_first and run.start() < 3 and _SEPARATOR.match(text, end):
        upto = TERM.search(text, end)
        if _TAKEN_BACK.search(text, end, upto.start() if upto else len(text)) or _NO_NEXT.match(following):
            return "denied", run.end()
    return "nothing", run.end()


# --- the words -----------------------------------------------------------------------------------------

# Longer phrases stand before shorter ones that they begin with. Every repetition is bounded or possessive.


def either(*alternatives: str) -> str:
    """One of these, up to the end of a word."""
    return rf"(?:{'|'.join(alternatives)})(?![\w'-])"


NOT = r"(?:not|never|cannot|[a-z]{0,8}n't|(?:is|was|are|were|does|do|did|has|have|had|could|would|ca|wo)nt)"
TAG_WORDS = r"(?:(?:failure )?(?:tags?|labels?|flags?|modes?|terms?|categor(?:y|ies))|failures?)"

_YES = r"(?:yes|true|present|applies|applicable|observed|found|confirmed|detected|identified|1|✓|✔|✅|☑)"
_NO = (
    r"(?:none|nope|no|zero|n/a|na|not applicable|false|absent|null|never|neither|nothing|negative|avoided|ruled out"
    r"|excluded|unlikely|unfounded|unchecked|unassigned|rejected|considered|unknown|possibly|maybe|perhaps|clean|clear"
    r"|pass(?:ed)?|ok|inapplicable|doubtful|unclear|unproven|0(?:/[0-9]{1,3})?|✗|✘|✖|❌|⛔|☐|👎|\(\s?\))"
)
_END = r"(?=\s*(?:$|[.,;:!?)|(/]|-+\s|->))"
_END_BUT_NO_COLON = r"(?=\s*(?:$|[.,;!)(]|-+\s))"
_HERE = r" (?:here|anywhere|at all|by me|in (?:this|the) (?:case|session|investigation|timeline|analysis|report|run))"
_KEY = r"(?:(?:is )?(?:present|applies|applicable|observed|found|status|verdict|answer|value)\s?[:=?]\s?)?"
_SEPARATES = rf"(?:\s?\))?\s*(?:->|[:=|,?(]|-+(?=[\s>]))[\s:=(>-]{{0,6}}{_KEY}"
_EXISTS = (
    r"(?:found|observed|present|seen|detected|identified|applicable|apply|applied|appear(?:s|ed)?|occur(?:s|red)?"
    r"|happen(?:s|ed)?|evident|apparent|noted|triggered|assigned|set|warranted|relevant|visible"
    r"|an? (?:issue|problem|concern|factor))"
)
_BE = (
    r"(?:(?:is|was|are|were|be|been|being|has|have|had|can|could|does|do|did|should|must|will|seems?|appears?|to|both"
    r"|all|each|also|itself|clearly|certainly|therefore|thus|really|successfully|completely|entirely|largely)\s){0,5}"
)
_INVENTED = r"(?:fabricat|hallucinat|invent|overclaim|overstat)\w*"
_FAULT = (  # what an explanation of a term in it would name
    rf"(?:{_INVENTED}|(?:error|mistake|contradict|overconfiden|issue|problem|concern|leap|gap|flaw|sign|indication"
    r"|instance|trace|hint|violation|occurrence|case|example|evidence|made.up|unsupported|premature|wrong|false"
    r"|incorrect|missed|missing)\w*)"
)
_ONE = r"(?:[\w'-]{1,30} )"

_CONFIRMS = (
    rf"{_SEPARATES}{_YES}(?!\s?:){_END}",
    r"\s(?:could|should|would|might|must) (?:easily )?have been (?:avoided|prevented)",
    # Of what is not there nobody says that it was not corrected, or that it does not matter.
    rf"\s{_BE}{NOT} (?:been |be |even |ever |later |at all )?"
    + either(
        r"only|just|merely|simply|solely|the only|an? (?:small|minor)|trivial|minor|small|negligible|harmless|isolated",
        r"corrected|revis\w+|retract\w+|fix\w*|caught|undo|undone|repair\w*|remed\w+|address\w*|withdrawn|admit\w*",
        r"acknowledg\w+|excus\w+|forgiv\w+|tolerat\w+|mitigat\w+|offset|outweigh\w*|compensat\w+|hid(?:e|den)",
        r"avoid\w*|absent|den(?:y|ied)|ignor\w+|overlook\w*|limited|acceptable|surpris\w+|unexpected|due to|because",
        r"affect|change|alter|help|support|carry|back|allow|permit|suffice|explain|convince|justify",
    ),
)
_DENYING_ANSWERS = (
    rf"{_NO}{_END}|(?:considered|checked|rejected)\b|-\s*$|(?:0|zero) (?:instances?|cases?|occurrences?|points?)\b",
    rf"(?:(?:it|this|this tag|i|we|there|that) )?(?:(?:is|was|does|did|do|could|has|have|been) )?{NOT} "
    rf"(?:been |be |really )?{_EXISTS}(?:{_HERE}|{_END})",
    rf"{NOT} (?:here|really|at all|so|quite|in this)\b|(?:cannot|can't) (?:be )?(?:tell|say|determine|judge|assess)",
    rf"(?:(?:i|we|there|this|it|they|was|were|is|are|found|see|saw|find|show|shows) ){{0,3}}no (?:(?!such){_ONE})?"
    rf"{_FAULT}(?:{_END}| (?:in|of|was|were|is|are|found|here|that|for|at|with|between|on|to)\b)",
    rf"no {_ONE}?(?:{_INVENTED}|(?:overconfiden|made.up|unsupported|miss(?:ed|ing)|wrong|premature|incorrect)\w*)",
    rf"no {_ONE}{{1,3}}(?:was|were|is|are) (?:missed|missing|overlooked|{_INVENTED})",
    rf"(?:(?:the|agent|it|this|they|he) ){{0,2}}{NOT} (?:{_INVENTED}|(?:jump|leap)\w*)",
    r"(?:none|neither|nothing) (?:of (?:these|them|those|which)|(?:was |were )?(?:found|observed|seen|detected)|appl)",
    r"(?:none|nothing) (?:that|which|i|of the (?:kind|sort))\b|(?:i|we) (?:found|saw|see|find|have) (?:none|nothing)\b",
    rf"(?:i|we) (?:(?:did|do|could) )?{NOT} (?:find|see|detect|observe|notice|identify) (?:any|it|this|one|that)\b",
)
_DENYING_PREDICATES = (
    rf"\s*[:=|?(]\s*{_ONE}{{1,5}}(?:no|not|none|nothing|zero|not (?:so|the case)){_END}",
    rf"\s(?:out|aside|open){_END}|\s{_BE}{_NO}(?=\s*(?:$|[.,;!)]|{MARK}))",
    rf"\s?\) {_BE}(?:absent|{NOT} (?:apply|applicable|assigned|warranted|triggered))\b",
    rf"(?:,? which)?\s{_BE}"
    + either(rf"{NOT}|hardly|scarcely|barely|nowhere|none|neither|no (?:longer|issue|problem|concern|factor)")
    + rf"(?! (?:an? |the )?{MARK})",
    rf"(?:,? which)?\s{_BE}"
    + either(
        r"absent|avoided|ruled out|excluded|unfounded|unwarranted|unjustified|unlikely|inapplicable|lacking|missing",
        r"dismissed|rejected|disprove[dn]|refuted|irrelevant|impossible|unproven|unconfirmed|unfair|doubtful",
        r"questionable|debatable|excessive|an? stretch|far-fetched|inappropriate|undeserved|misplaced|unchecked",
        r"out of the question|off the table",
        r"considered|checked|evaluated|weighed|examined|discussed|tested|reviewed|too (?:harsh|strong|severe)",
        r"(?:hard|difficult) to (?:see|find|argue|justify|defend|support|make out|detect|prove|establish)",
    ),
    r",? which (?:is|was) (?:false|untrue)\b|\s(?:and|but) (?:found (?:it |them )?not|rejected|dismissed|discarded)\b",
    r"\s(?:has|have|had|finds?|found|needs?|deserves?|plays?|played|gets?|got) no(?! excuse)\b",
)
_DEFINITIONS = (
    r"\s(?:would|might|may|could)(?! have been (?:avoided|prevented))\b|\s(?:only )?(?:if|unless)(?! anything)\b",
    r"\s(?:means?|refers? to|denotes?|stands? for|describes?|covers?|appl(?:y|ies) (?:only )?(?:when|if))\b",
    rf"\s(?:is|are) (?:used|meant|reserved|intended|defined|when|for|if|one of|among|an? {TAG_WORDS} (?:for|that|used)"
    r"|possible|in the|part of the)\b",
    r"\s(?:is|are) an? [\w-]{1,20} (?:that|which|where|in which)\b|\s(?:should|must|can|shall|may) only be\b",
)
_BEHIND = re.compile(
    rf"(?P<confirmed>{'|'.join(_CONFIRMS)})|(?P<denied>{_SEPARATES}(?:{'|'.join(_DENYING_ANSWERS)})"
    rf"|{'|'.join(_DENYING_PREDICATES)}|{'|'.join(_DEFINITIONS)})"
)
HOLDS = re.compile(
    r"\s(?:clearly |also |then |therefore )?(?:applies|apply|is (?:present|evident|the)|follows|followed|resulted)\b"
)
ANSWER = re.compile(rf"{_NO}|{_YES}|-|not {_EXISTS}")
_TAG_NOUN = re.compile(rf"\s{TAG_WORDS}(?!\w)")
_REMARK = re.compile(rf"\s?\([^(){MARKS}]{{0,200}}\)")
_SEPARATOR = re.compile(_SEPARATES)
_NOTHING_ELSE = re.compile(rf"[^\w{MARKS}]*+\Z")
_NO_NEXT = re.compile(
    rf"\W{{0,6}}{_KEY}(?:{_NO}(?<![0-9]){_END_BUT_NO_COLON}|{NOT} {_EXISTS}(?:{_HERE}|{_END_BUT_NO_COLON})"
    r"|(?:does|did|do) not apply|none (?:of (?:it|them|this|these)|found|observed|seen|was|were)"
    r"|(?:there (?:is|was|were) )?no (?:clear |such )?(?:evidence|signs?|indications?|instances?|traces?|cases?)\b"
    r"|i (?:found|saw|see|find) (?:none|no\b|nothing))"
)
_TAKEN_BACK = re.compile(
    rf"\b(?:(?:(?:does|do|did) not|doesn't|didn't|don't) apply|not applicable|n/a|not observed{_END}"
    r"|none (?:found|observed|identified|seen)|no (?:such )?(?:instances?|occurrences?) (?:was|were|of this|found))"
)
