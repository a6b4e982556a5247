"""Cuts the reasoning of a model from its reply, where an endpoint leaves it inside the text."""

import re
from itertools import islice

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.judge.read.quotation import Line, read_lines

_FORMS = [
    [re.compile(end, re.IGNORECASE) for end in ends] for ends in packaged_yaml(__package__, "reasoning.yaml")
]
_OPENING, _CLOSING = _FORMS[0]
_WRAPPED = re.compile(r"<(answer|output|response|final_answer)>(.*)</\1>", re.IGNORECASE | re.DOTALL)
_ENDS_OF_TURN = re.compile(r"<\|(?:return|end|im_end)\|>")
_QUOTES = set("\"'`“”‘’«»")
_MARKS = " \t-*+•|.)0123456789"  # before an item of a list or a cell of a table
_MOST_BLOCKS = _MOST_TAGS = 20  # each searches the rest of the reply


def without_reasoning(reply: str) -> str:
    """
    The reply without reasoning before the answer; empty where it holds nothing but reasoning.

    Reasoning stands between tags (`<think>`, `[THINK]`, `<|channel|>analysis`) at the start. It also ends at
    a closing tag that no tag opened, because chat templates open it in the prompt; a quoted tag ends nothing.
    """
    answer = reply
    for _ in range(_MOST_BLOCKS):
        if (rest := _behind_block(answer.lstrip("\ufeff \t\r\n"))) is None:
            break
        answer = rest
    if answer is reply and (answer := _behind_lone_tag(reply)) is reply:
        return reply
    answer = _ENDS_OF_TURN.split(answer, maxsplit=1)[0].strip()
    wrapped = _WRAPPED.fullmatch(answer)
    return wrapped[2].strip() if wrapped else answer


def _behind_block(text: str) -> str | None:
    for begin, end in _FORMS:
        if opened := begin.match(text):
            closings = islice(end.finditer(text, opened.end()), _MOST_TAGS)
            word = str(opened.groupdict()).lower()
            ends = (closing.end() for closing in closings if str(closing.groupdict()).lower() == word)
            return text[next(ends, len(text)) :]
    return None


def _behind_lone_tag(text: str) -> str:
    lines: list[Line] = []
    for closing in islice(_CLOSING.finditer(text), _MOST_TAGS):
        lines = lines or read_lines(text)
        start, end = closing.span()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        is_item = before and not before.strip(_MARKS)
        is_quoted = is_item or lines[text.count("\n", 0, start)].is_quoted
        if not is_quoted and not {text[start - 1 : start], text[end : end + 1]} & _QUOTES:
            return text if _OPENING.search(text, 0, start) else text[end:]
    return text
