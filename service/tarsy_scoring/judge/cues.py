"""
The words of `failure_tags`: cues that deny, question or only mention a term, and words that end their scope.

All patterns read lower-case text in which each term is one character of the class `X`. A longer phrase comes
before a shorter one that it begins with. Every repetition is bounded, so that matching stays linear.
"""

import re

FIRST_MARK = 0xF0000  # a private plane, whose characters do not occur in text
X = f"[{chr(FIRST_MARK)}-\U000ffffd]"
TERM = re.compile(X)


def _any(*alternatives: str) -> str:
    return rf"(?:{'|'.join(alternatives)})(?![\w'-])"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT = r"(?:not|never|cannot|[a-z]{0,8}n't)"
_TAGS = r"(?:failure )?(?:tags?|labels?|flags?|modes?|terms?|categories|category|failures?)"

# --- cues in front of a term ---------------------------------------------------------------------------

_QUIET = _any(  # contains the word of a cue and denies nothing
    rf"{_NOT} (?:only|just|merely|simply|least|to mention|surprising\w*|unexpected\w*)",
    rf"{_NOT} (?:be )?(?:den(?:y|ied)|ignored?|overlook(?:ed)?|excused?)|not without|cannot but|can't help(?: but)?",
    rf"{_NOT} (?:even |ever |later )?(?:correct|revis|retract|excus|mitigat|repair|acknowledg|admit)\w*",
    r"no (?:doubt|question|wonder|denying|surprise|matter|(?:excuse|justification) for|less(?: than)?|better than)",
    r"(?:nothing|none|no) (?:but|less than|short of|other than)|without (?:any |a )?(?:doubt|question|exception)",
    r"(?:should|could|would|might|must) have (?:been )?(?:avoided|prevented)|fail\w* to (?:avoid|prevent)",
    r"(?:i|we)(?: would|'d) (?:also )?(?:call|tag|label|flag|say|add|note)|would have to be called|even if|if anything",
)
_NONE = _any(
    r"none|nothing|neither|nor|no|no one",
    r"(?:too )?(?:little|insufficient|weak) (?:evidence|signs?|support|reasons?|grounds?)",
)
_FAR = _any(
    _NOT,
    r"hardly|scarcely|barely|nowhere|unable to|impossible to|may|might|could|would|thought about",
    r"(?:i|we)(?: have| also| first){0,2} (?:considered|weighed)",
    r"(?:check|look|search|screen|test|watch|scan|ask|accuse)(?:s|d|ed|ing)? (?:for|whether|about|me|us|you|to|of)",
    r"(?:hard|difficult|unfair|unlikely|reluctant|hesita\w+|wrong|premature) to|unlikely|doubtful|questionable",
    r"too (?:small|minor|weak|harsh|strong|severe|early|thin|slight) (?:to|for)",
    r"fail(?:s|ed)? to (?:qualify|amount|constitute|meet|exhibit|show|be)|short of|declin\w+ to|decid\w+ against",
    r"rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|(?:dismiss|reject|retract)(?:es|s|ed|ing)?",
    r"unassigned|inapplicable|absent|n/a|(?:leav|left)\w* out|withh[eo]ld\w*|omitted",
)
_NEAR = _any(
    r"anything but|(?:absence|lack|devoid|clear|innocent|free) of|lack(?:s|ed|ing)?|(?:free|far|safe) from",
    r"avoid(?:s|ed|ing|ance of)?|prevent(?:s|ed|ing)?|escap(?:e|es|ed|ing)|resist(?:s|ed|ing)?|omit(?:s|ted|ting)?",
    r"less (?:of )?an?|against|than|minus|zero|0|w/o|without|with (?:no|nothing|none)|instead of|in place of|unlike",
    r"refrain(?:s|ed|ing)? from|guard(?:s|ed|ing)? against|immune to|temptation of|as opposed to",
    r"(?:clear(?:s|ed)|exonerat\w+) (?:\w{1,20} ){0,3}of|(?:disprov|refut|contradict)\w*",
)
_MAYBE = _any(
    r"possibly|possible|perhaps|maybe|potential(?:ly)?|almost|nearly|borderline|such as|as (?:for|to)|regarding",
    r"(?:risk(?:s|ed)?|suspicion|danger) of|border(?:s|ed|ing)? on|terms of|close to|e\.g\.,?",
)
_ALL = _any(
    r"if|whether|unless|suppose|assuming|in case|as though|either|^had|^use|^to be|vocabulary|one of|any of",
    rf"(?:possible|available|allowed|permitted|candidate|valid|known|defined) {_TAGS}|list of {_TAGS}",
    r"(?:tags?|labels?|modes?|terms?) (?:considered|checked|reviewed|evaluated|assessed|to \w+)",
    r"defin(?:es|itions?)|cho(?:ose|osing|sen) (?:from|between|among)",
)

# --- what ends a scope ---------------------------------------------------------------------------------

_END = _any(
    r"but|however|although|though|because|since|so|hence|therefore|thus|thereby|consequently|yet|still|other than",
    r"except|besides|apart from|given",
)
_SUBJECT = (
    r"it|its|it's|this|that|these|those|he|they|there|i|we|which|who|only|rather|merely|is|was|are|were|has|had|makes"
    r"|amounts|counts|drew|gave|made|came|led|went|ran|took|draws|leads|jumps|ends|reaches|applies"
    r"|(?!including|ruling|excluding)\w{1,30}ing"
)
_CLAUSE = (  # the begin of another clause
    rf"(?:, (?:and )?(?:then )?|(?<!\w)(?:and|then) )(?:{_SUBJECT})(?![\w'-])|, (?:the|his|their) (?!{X})\w+"
    rf"|(?<!\w)and (?:\w{{1,30}}ed(?!\w)|(?:the|an?|his|their) (?!{X}))"
)
TOKEN = re.compile(
    rf"(?<![\w'-])(?:(?P<quiet>{_QUIET})|(?P<none>{_NONE})|(?P<far>{_FAR})|(?P<near>{_NEAR})"
    rf"|(?P<all>{_ALL})|(?P<maybe>{_MAYBE})|(?P<end>{_END})|(?P<or>n?or)(?!\w))|(?P<clause>{_CLAUSE})|(?P<word>\w[\w'/-]*+)|(?P<comma>,)"
    r"|(?P<semicolon>;)|(?P<colon>:|->|→| - |=)|(?P<open>\()|(?P<close>\))"
)
ASIDE = re.compile(r",(?! (?:so|it|this|that|but|which|nor|and) )[^,;:.()]{0,40},")  # `, in my view,`
ARTICLE_NEXT = re.compile(r" *(?:an?|the|its|another) ")
LEADING_ON = _words("of for following below these tag tags label labels failure failures mode modes")
RELATIVE = _words("that which who what have been")
PRONOUNS = _words("i we it he they this")
VERBS = _words(
    """
    is was are were makes made means counts shows turns led leads results caused left leaves
    """
)
OPINIONS = _words(
    """
    think believe say see find mean prove suggest indicate claim argue agree consider convinced clear true
    sure
    """
)
# Words between a cue and the term that it denies. Any other word is denied in its own right.
CARRYING = _words(
    """
    a an the any some this that its their such single one further kind sort level of for in to from as at
    on with by into about both what i we it they following listed below above here there also all fully
    even ever really actually clearly truly quite sign signs evidence indication indications trace traces
    hint instance instances case cases example symptom proof reason reasons basis grounds charge tag tags
    label labels flag flags failure failures mode modes finding findings term terms list problem problems
    issue issues mistake trap be been being is was were are am do does did has have had can will should
    must need show shows showed shown exhibit display demonstrate constitute amount qualify count contain
    include involve suggest indicate find found see saw seen observe observed detect detected identify
    identified notice present apply applies applied applicable call called calling assigning tagging
    tagged classified considered regarded described assign assigned given committed make made draw drew
    drawing jump jumped reach reached resort think believe say warranted justified deserve meet fall fell
    rise point exist occur occurred use used clear real obvious direct serious true specific sure
    convinced pains
    """
)

# --- answers behind a term -----------------------------------------------------------------------------

RUN = re.compile(  # terms that share a statement: `X, Y and Z`
    rf"{X}(?:[\s,/&+]*(?:(?:and/or|and|or|nor|as well as|plus)[\s,]+)?(?:(?:an?|any|even|the) )?{X})*"
)
_NO = (
    r"(?:none|nope|no|zero|n/a|not applicable|false|absent|null|never|neither|nothing|negative|avoided|ruled out"
    r"|excluded|unlikely|unfounded|unchecked|unassigned|rejected|considered|unknown|possibly|maybe|perhaps|unclear"
    r"|clean|clear|pass(?:ed)?|ok|0(?:/[0-9]{1,3})?|✗|✘|✖|❌|⛔|☐|👎|\(\s?\))"
)
_YES = r"(?:yes|true|present|applies|observed|found|confirmed|detected|identified|1|✓|✔|✅|☑)"
_STOP = rf"(?=\s*(?:$|[.,;!?)(|/]|-+\s|->|{X}))"
_EXISTS = (
    r"(?:found|observed|present|seen|detected|identified|applicable|apply|applied|occur(?:red)?|happen(?:ed)?|evident"
    r"|noted|triggered|assigned|set|warranted|relevant|visible|so|really|quite|the case|an? (?:issue|problem|concern))"
    rf"(?:{_STOP}| (?:here|at all|by me|in (?:this|the) \w+))"
)
_BE = (
    r"(?:(?:is|was|are|were|be|been|has|have|can|could|does|do|did|should|must|seems?|to|both|all|also|clearly"
    r"|certainly|therefore|thus|really|successfully)\s){0,5}"
)
_FAULT = (
    r"(?:sign|evidence|indication|instance|trace|issue|problem|occurrence|case|fabricat|invent|overconfiden|gap)\w*"
)
_KEY = r"(?:(?:is )?(?:present|applies|applicable|observed|found|status|verdict|answer|value)\s?[:=?]\s?)?"
_SEPARATOR = rf"(?:\s?\))?\s*(?:->|→|[:=|,?(]|-+(?=[\s>]))[\s:=(>-]*{_KEY}"
_REMARK = rf"(?:\s{_TAGS}(?!\w))?(?:\s?\([^(){X[1:-1]}]{{1,200}}\))?"
SEPARATOR = re.compile(_SEPARATOR)
QUIET_BEHIND = re.compile(  # a failure that was never corrected, or that does not matter, is there
    rf"\s{_BE}{_NOT} (?:been |be |even |ever |later )?"
    + _any(
        r"only|just|merely|simply|solely|an? (?:small|minor)|trivial|minor|small|negligible|harmless",
        r"(?:correct|revis|retract|fix|undo|repair|remed|address|admit|acknowledg|excus|forgiv|tolerat|mitigat)\w*",
        r"(?:offset|outweigh|compensat|avoid|den[yi]|ignor|overlook|limit|accept|surpris|unexpect|affect|chang)\w*",
        r"alter|help|support|carry|back|allow|permit|suffice|explain|convince|justify|due to|because",
    )
    + r"|\s(?:could|should|would|might) (?:easily )?have been (?:avoided|prevented)"
)
_DENYING_ANSWER = (  # `X: no`, `X: I found none`
    rf"{_NO}(?:{_STOP}|\s*:)|(?:considered|rejected)\b|-\s*$|{_NOT} in this|cannot (?:be )?(?:tell|say|determine)"
    r"|(?<=[:=(] )(?:[\w']+ ){1,4}(?:no|not|none|not the case)(?=\s*(?:$|[.;!)]))"
    rf"|(?:(?:it|this|i|we|there|that) )?(?:(?:is|was|does|did|do|could|has|have|been) )?{_NOT} (?:been |be )?{_EXISTS}"
    rf"|(?:(?:i|we|there|is|was|are|found|see|saw|this) ){{0,3}}(?:no|zero|0) (?!such line)(?:\w+ )?{_FAULT}"
    r"|no (?:\w+ ){1,2}(?:was|were) miss|no missed|(?:i|we) (?:did|do|could) not (?:find|see|detect) (?:any|it|this)"
    r"|(?:none|nothing) (?:of (?:these|them|the kind)|found|observed|detected|identified|that)"
    r"|(?:i|we) (?:found|saw|see|find) (?:none|nothing)|(?:neither|none) appl|(?:the )?answer is no\b"
)
_DENYING_PREDICATE = (  # `X does not apply`, `X is ruled out`
    rf"(?:\s?\)|, which)?\s{_BE}(?:{_NOT}|hardly|nowhere|neither|no (?:longer|issue|problem|concern))(?!\w)"
    rf"(?! (?:an? |the )?{X})|\s(?:has|have|had|finds?|found|needs?|deserves?|plays?|played) no(?! excuse)\b"
    rf"|\s{_BE}{_NO}{_STOP}|, which is (?:false|untrue)|(?:\s?\))?\s{_BE}"
) + _any(
    r"absent|avoided|ruled out|excluded|unfounded|unwarranted|unjustified|unlikely|inapplicable|lacking|missing",
    r"dismissed|rejected|refuted|irrelevant|unproven|doubtful|questionable|debatable|inappropriate|an? stretch",
    r"considered|checked|evaluated|weighed|examined|off the table|out of the question|out|weak|unchecked",
    r"too (?:harsh|strong|severe)|(?:hard|difficult) to (?:see|find|argue|justify|defend|detect)",
)
_DEFINITION = (  # `X means that ...` names a term and asserts nothing
    r"\s(?:would|might|may|could)\b|\s(?:only )?(?:if|unless)\b(?! anything)|\s(?:should|must|can|may) only be\b"
    r"|\s(?:means?|refers? to|denotes?|describes?|stands? for|appl(?:y|ies) (?:only )?(?:when|if))\b"
    rf"|\s(?:is|are) (?:used|meant|reserved|defined|when|for|one of|among|an? {_TAGS} (?:for|that|used)|an? \w+ that)\b"
)
DENIED_BEHIND = re.compile(rf"{_REMARK}(?:{_SEPARATOR}(?:{_DENYING_ANSWER})|{_DENYING_PREDICATE}|{_DEFINITION})")
DENIED_AT_END = re.compile(  # `X: every line exists, so it does not apply`
    r"(?:(?:does|do|did) not|doesn't|didn't|don't) apply|not applicable|n/a|not observed|, so no\.?$|answer is no$"
)
CONFIRMED = re.compile(rf"{_REMARK}{_SEPARATOR}{_YES}(?!\s?:){_STOP}")
HOLDS = re.compile(r"\s(?:clearly |also |then )?(?:applies|apply|does|is (?:present|evident))\b(?! not)")
ANSWER = re.compile(rf"{_NO}|{_YES}|-|not {_EXISTS}")
NO_NEXT = re.compile(
    rf"\W*{_KEY}(?:{_NO}(?=\s*(?:$|[.,;!]|-))|{_NOT} {_EXISTS}|(?:does|did|do) not apply"
    r"|none (?:of (?:it|them)|found|observed|was)|i (?:found|saw|see) no"
    r"|(?:there (?:is|was) )?no (?:clear |such )?(?:evidence|signs?|indications?|instances?|cases?)\b)"
)
YES_NEXT = re.compile(r"\W*(?:yes|indeed|definitely|certainly|clearly|it does|it did|it was|there was)\b")
