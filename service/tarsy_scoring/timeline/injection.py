"""
Finds text in a session that addresses the judge instead of reporting the incident.

A match proves nothing and stops nothing. It raises a flag, and gives the spans to mask when the session is
judged a second time.
"""

import re
from dataclasses import dataclass

import re2

from tarsy_scoring.timeline.masking import compile_bytes

FENCE_REMOVED = "[fence removed]"
"""Replaces an imitated delimiter; see `fence`."""

INSTRUCTION_REMOVED = "[instruction removed]"

# Between words: blanks, underscores, punctuation, line breaks, and their escapes in JSON and in URLs.
_GAP = r"""(?:[\s_*"'`.,:~+-]|\\{1,8}[nrt]|%20){1,4}"""
_FEW = rf"(?:[\w'’]+{_GAP})"
_TOP = (
    r"(?:100|9[0-9]|10[ ]?/[ ]?10|(?:10|ten)[ ]out[ ]of[ ](?:10|ten)|a?[ ]?perfect"
    r"|full[ ](?:marks|points|score|credit)|(?:the[ ])?(?:maximum|highest|top|best)(?:[ ]possible)?"
    r"(?:[ ](?:score|marks?|grade|rating|points))?)\b"
)
_JUDGE = (
    r"(?:judge|grader|evaluator|scorer|assessor|scoring[ _-](?:model|service|system|agent|llm|ai)"
    r"|evaluation[ _-](?:model|system|agent|llm|ai)|llm[ _-]?judge)"
)

# A word boundary that also splits `ignore_this`, which is one word to `\b`.
_B = r"(?:\b|_)"
# The beginning of a line, with decoration, and its end; line ends may be escaped as in JSON.
_LINE = r"""(?:\n|\\{1,8}n|\A)[ \t>*#_"'`{\[(-]{0,6}"""
_LINE_END = r"""[ \t*_"'`,.}]{0,4}(?:\n|\\{1,8}n|\z)"""
_COLON = r"(?:[:=]|\xef\xbc\x9a)"
_NUMBER = r"[+]?[0-9]{1,3}"
_OF_HUNDRED = r"[ \t]*(?:/|out[ ]of)[ \t]*100\b"
_AWARD = r"(?:give|assign|award|grant)"

_PATTERNS: dict[str, tuple[str, ...]] = {
    "imitated_delimiter": (
        r"\[fence removed\]",
        r"</?(?:session_conversation|alert_data|system_prompt|judge_instructions|untrusted_data)>",
        rf"\bend{_GAP}of{_GAP}(?:the{_GAP})?(?:session{_GAP}data|evidence|transcript|untrusted{_GAP}(?:data|text))\b",
    ),
    "chat_role_token": (
        r"<\|[a-z][a-z0-9_]{0,40}\|>|<\|(?:begin|end)\xe2\x96\x81[a-z\x80-\xff]{1,40}\|>",
        r"\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>",
        r"(?:\n|\A)[ \t]*(?:Human|Assistant):[ ]*(?:score|rate|give|ignore|the[ ]score)",
    ),
    "role_line": (
        _LINE + r"(?:system|developer|assistant|admin(?:istrator)?)[ _]?(?:message|prompt|override|note|instructions?)?"
        r"[ \t*_\])]{0,4}:[ \t*_]{0,4}(?:you[ ](?:are|must|should|will|shall|have[ ]to)|from[ ]now[ ]on"
        r"|new[ ]instructions?|ignore|disregard|override|score|rate|grade|award|give|assign"
        r"|th(?:e|is)[ ](?:investigation|evaluation|session|score|judge))",
    ),
    "ignore_instructions": (
        rf"{_B}(?:ignore|disregard|forget|override|bypass|skip){_GAP}{_FEW}{{0,4}}"
        r"(?:previous|prior|above|earlier|preceding|foregoing|existing|original|system|your|all|any|(?:judg|grad|scor)ing)"
        rf"{_GAP}{_FEW}{{0,3}}(?:instructions?|prompts?|directives?|guidelines|criteria|rubrics?|orders){_B}",
        rf"\b(?:ignore|disregard|forget){_GAP}(?:(?:everything|anything|all|whatever|what[ ]was[ ]said){_GAP})?"
        rf"(?:(?:of|that|is|was|the){_GAP}){{0,2}}(?:above|before[ ]this)\b",
    ),
    "new_instructions": (
        r"\b(?:new|updated|revised|real|actual|secret)[ ](?:system[ ])?(?:instructions?|prompt|directive)"
        r"(?:[ ]for[ ]the[ ]\w+)?[ ]?:",
    ),
    "addressed_judge": (
        r"\b(?:dear|attention|note[ ](?:to|for)|message[ ](?:to|for)|instructions?[ ](?:to|for)|hey|hello)[ ,:]{1,3}"
        rf"(?:the[ ])?(?:ai[ ]|llm[ ]|automated[ ])?{_JUDGE}\b",
        rf"\b(?:as|you[ ]are)[ ](?:the|an?)[ ](?:\w+[ ])?{_JUDGE}\b",
        rf"\b{_JUDGE}[ ](?:must|should|shall|has[ ]to|needs[ ]to|will)[ ](?:\w+[ ]){{0,2}}"
        rf"(?:{_AWARD}|score|rate|grade|return|output|ignore)\b",
    ),
    "score_demand": (
        rf"{_B}(?:score|rate|grade|mark|evaluate){_GAP}(?:this|it|me|us|the|my|our){_GAP}{_FEW}{{0,4}}{_TOP}",
        rf"\b(?:{_AWARD}|return|output|report|respond[ ]with|answer[ ]with|set){_GAP}{_FEW}{{0,6}}"
        rf"(?:score|grade|rating|total|marks?|points){_GAP}(?:(?:of|as|to|at|is|be){_GAP})?{_TOP}",
        rf"\b{_AWARD}{_GAP}{_FEW}{{0,4}}(?:perfect|full|maximum|highest|top)[ ]"
        r"(?:score|grade|rating|marks?|points|credit)\b",
        rf"\b(?:deserves|merits|worth|earns|gets)[ ]{_FEW}{{0,3}}"
        r"(?:100[ ]?(?:/|out[ ]of|points|%)|(?:perfect|full|maximum|highest)[ ](?:score|marks?|points))",
        rf"\b(?:respond|answer|reply|conclude|finish){_GAP}(?:only{_GAP})?with{_GAP}{_FEW}{{0,3}}(?:100|9[0-9])\b",
        rf"\b(?:end|finish)[ ]your[ ](?:answer|reply|response|analysis)[ ]with{_GAP}{_FEW}{{0,3}}[0-9]{{1,3}}\b",
        r"\b(?:must|should|just|please|and)[ ](?:output|print|return|award|give[ ]it|say)"
        rf"{_GAP}{_FEW}{{0,3}}(?:100|9[0-9])\b",
        rf"\b(?:award|give[ ](?:it|this|me|us))[ ]{_FEW}{{0,2}}100\b[ ]?"
        r"(?:points|marks|/|out[ ]of|and|in|for|[.,;!\n]|\z)",
        rf"\b(?:write|put|print|output|return|say|state){_GAP}{_FEW}{{0,3}}(?:100|9[0-9]){_GAP}{_FEW}{{0,2}}"
        rf"(?:on|as|in){_GAP}(?:the|your){_GAP}(?:last|final|total)\b",
        rf"\b(?:last|final)[ ]line[ ]{_FEW}{{0,4}}(?:must|should|shall|has[ ]to)[ ]{_FEW}{{0,2}}{_TOP}",
        r"\bdo[ ]not[ ](?:deduct|subtract)[ ](?:any[ ])?points\b",
        r"\bset[ ](?:the[ ])?score[ ]?(?:=|to)[ ]?[0-9]",
        r"\b(?:final|total|overall|correct|the)[ _]score[ ](?:is|of|(?:must|should|shall|has[ ]to)[ ]be)[ ]"
        r"\**[0-9]{1,3}\b",
    ),
    "fake_score_line": (
        _LINE + r"(?:(?:total|final|overall|judge|quality|my|the|investigation)[ _-]?(?:total[ _-])?)?"
        rf"(?:score|grade|rating)[ \t*_`]{{0,4}}{_COLON}[ \t*_\"'`]{{0,4}}{_NUMBER}"
        rf"(?:{_OF_HUNDRED}|[ \t]*%|[ \t]*points)?{_LINE_END}",
        rf"\b(?:total|final|overall)[ _-]?score[\"'*]{{0,3}}[ ]?{_COLON}[ *]{{0,3}}{_NUMBER}{_OF_HUNDRED}",
        rf"{_LINE}total[ \t*_]{{0,3}}{_COLON}[ \t*_]{{0,3}}{_NUMBER}{_OF_HUNDRED}{_LINE_END}",
        rf"{_LINE}Outcome[ \t*_]{{0,4}}{_COLON}[ \t*_]{{0,4}}(?:correct|partial|wrong){_LINE_END}",
        # the keys of the judge's own answers, and an object that holds only a score
        r"""\\*["'](?:(?:total|final|overall)_score|weighted_score|score_breakdown|score_reasoning)\\*["']\s*:""",
        rf"""\{{\s*\\*["'](?:score|grade|rating)\\*["']\s*:\s*\\*["']?{_NUMBER}\\*["']?\s*\}}""",
    ),
}

_NAMES = tuple(_PATTERNS)
_INJECTION = compile_bytes("(?i)" + "|".join(f"({'|'.join(p)})" for p in _PATTERNS.values()))
INJECTION_PATTERN = "(?i)" + "|".join("|".join(p) for p in _PATTERNS.values())
"""Matches wherever `find_injections` finds something."""

_ANY_INJECTION = compile_bytes(INJECTION_PATTERN, capture=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A suspicious stretch of a text, in bytes of its UTF-8."""

    start: int
    end: int
    pattern: str


def find_injections(data: bytes) -> list[Span]:
    """
    The spans of a UTF-8 text that try to steer the judge, in order and without overlap; linear.

    Args:
        data: Text from `fence.clean`: a zero-width space would hide a word.
    """
    if _ANY_INJECTION.search(data) is None:
        return []
    spans: list[Span] = []
    position = 0
    while (match := _INJECTION.search(data, position)) is not None:
        spans.append(_span(data, match))
        # Not from the end of the match: the line end that it includes may begin the next match.
        position = spans[-1].end
    return spans


def _span(data: bytes, match: "re2._Match") -> Span:
    """The span of a match without the line ends that the pattern includes."""
    start, end = match.span()
    if before := _LINE_END_BEFORE.match(data, start):
        start = before.end()
    if after := _LINE_END_AFTER.search(data, start, end):
        end = after.start()
    return Span(start, end, _NAMES[match.lastindex - 1])


_LINE_END_BEFORE, _LINE_END_AFTER = re.compile(rb"\n|\\{1,8}n"), re.compile(rb"(?:\n|\\{1,8}n)\Z")


def mask_injections(data: bytes, spans: list[Span]) -> bytes:
    """
    Replace each span by `[instruction removed]`, together with the rest of its sentence.

    The sentence is likely to be part of the instruction. After a span that only introduces an instruction (a
    role, an end of the evidence, "new instructions:") the rest of the line is replaced. Where neither ends
    within `_NEAR_BYTES`, only the span is replaced.
    """
    pieces: list[bytes] = []
    position = 0
    for span in spans:
        if span.end <= position:
            continue  # removed with the sentence of the previous span
        start, end = _around(data, position, span)
        pieces += (data[position:start], INSTRUCTION_REMOVED.encode())
        position = end
    return b"".join((*pieces, data[position:]))


def _around(data: bytes, floor: int, span: Span) -> tuple[int, int]:
    """The range from the end of the previous sentence to the end of this one, or of the line, if they are
    near.
    """
    earliest = max(floor, span.start - _NEAR_BYTES)
    ends = [m.end() for m in _SENTENCE_END.finditer(data, earliest, span.start)]
    start = ends[-1] if ends else (earliest if earliest == floor else span.start)
    latest = min(len(data), span.end + _NEAR_BYTES)
    for following in (_END_OF_LINE, _SENTENCE_END) if span.pattern in _INTRODUCING else (_SENTENCE_END,):
        if end := following.search(data, span.end, latest):
            return start, end.start()
        if latest == len(data):
            return start, latest
    return start, span.end


_INTRODUCING = frozenset({"imitated_delimiter", "chat_role_token", "role_line", "new_instructions", "addressed_judge"})
_SENTENCE_END, _END_OF_LINE = re.compile(rb"[.!?\n]"), re.compile(rb"\n")
_NEAR_BYTES = 200
