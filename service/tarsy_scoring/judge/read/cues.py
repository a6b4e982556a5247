"""
Patterns for `failure_tags`: cues that deny, question or only mention a term, and words that end their scope.

The phrases are in `cues.yaml`; this module combines them. All patterns read lower-case text in which each
term is one character of the class `X`.
"""

import re
from typing import Any

from tarsy_scoring.config.packaged import packaged_yaml

FIRST_MARK = 0xF0000  # a private plane, whose characters do not occur in text
X = f"[{chr(FIRST_MARK)}-\U000ffffd]"
TERM = re.compile(X)

_FILE: dict[str, dict[str, Any]] = packaged_yaml(__package__, "cues.yaml")
_PHRASES = {"x": X, **_FILE["parts"], **_FILE["cues"], **_FILE["behind"]}


def _pattern(name: str) -> str:
    """The pattern of an entry: its alternatives as one group, with other entries filled in."""
    entry = _PHRASES[name]
    text = f"(?:{'|'.join(entry)})" if isinstance(entry, list) else entry
    whole_words = r"(?![\w'-])" if name in _FILE["cues"] else ""
    return re.sub(r"<([a-z_]+)>", lambda found: _pattern(found[1]), text) + whole_words


def _words(name: str) -> frozenset[str]:
    return frozenset(_FILE["words"][name].split())


_CLAUSE = (  # the beginning of another clause
    rf"(?:, (?:and )?(?:then )?|(?<!\w)(?:and|then) )(?:{_pattern('subject')})(?![\w'-])|, (?:the|his|their) (?!{X})\w+"
    rf"|(?<!\w)and (?:\w{{1,30}}ed(?!\w)|(?:the|an?|his|their) (?!{X}))"
)
_CUES = "|".join(
    f"(?P<{name}>{_pattern(name)})" for name in ("quiet", "none", "far", "near", "all", "maybe", "end")
)
TOKEN = re.compile(
    rf"(?<![\w'-])(?:{_CUES}|(?P<or>n?or)(?!\w))|(?P<clause>{_CLAUSE})|(?P<word>\w[\w'/-]*+)|(?P<comma>,)"
    r"|(?P<semicolon>;)|(?P<colon>:|->|→| - |=)|(?P<open>\()|(?P<close>\))"
)
ASIDE = re.compile(r",(?! (?:so|it|this|that|but|which|nor|and) )[^,;:.()]{0,40},")  # `, in my view,`
ARTICLE_NEXT = re.compile(r" *(?:an?|the|its|another) ")
LEADING_ON = _words("leading_on")
RELATIVE = _words("relative")
PRONOUNS = _words("pronouns")
VERBS = _words("verbs")
OPINIONS = _words("opinions")
CARRYING = _words("carrying")

# --- answers behind a term -----------------------------------------------------------------------------

RUN = re.compile(  # terms that share a statement: `X, Y and Z`
    rf"{X}(?:[\s,/&+]*(?:(?:and/or|and|or|nor|as well as|plus)[\s,]+)?(?:(?:an?|any|even|the) )?{X})*"
)
_NOT, _NO, _YES, _STOP, _EXISTS = map(_pattern, ("not", "negative", "affirmative", "stop", "exists"))
_KEY = r"(?:(?:is )?(?:present|applies|applicable|observed|found|status|verdict|answer|value)\s?[:=?]\s?)?"
_SEPARATOR = rf"(?:\s?\))?\s*(?:->|→|[:=|,?(]|-+(?=[\s>]))[\s:=(>-]*{_KEY}"
_REMARK = rf"(?:\s{_pattern('tags')}(?!\w))?(?:\s?\([^(){X[1:-1]}]{{1,200}}\))?"
SEPARATOR = re.compile(_SEPARATOR)
QUIET_BEHIND = re.compile(
    rf"\s{_pattern('be')}{_NOT} (?:been |be |even |ever |later )?{_pattern('quiet_behind')}"
    r"|\s(?:could|should|would|might) (?:easily )?have been (?:avoided|prevented)"
)
DENIED_BEHIND = re.compile(
    rf"{_REMARK}(?:{_SEPARATOR}{_pattern('denying_answer')}|{_pattern('denying_predicate')}|{_pattern('definition')})"
)
DENIED_AT_END = re.compile(_pattern("denied_at_end"))
CONFIRMED = re.compile(rf"{_REMARK}{_SEPARATOR}{_YES}(?!\s?:){_STOP}")
HOLDS = re.compile(r"\s(?:clearly |also |then )?(?:applies|apply|does|is (?:present|evident))\b(?! not)")
ANSWER = re.compile(rf"{_NO}|{_YES}|-|not {_EXISTS}")
NO_NEXT = re.compile(rf"\W*{_KEY}{_pattern('no_next')}")
YES_NEXT = re.compile(r"\W*(?:yes|indeed|definitely|certainly|clearly|it does|it did|it was|there was)\b")
