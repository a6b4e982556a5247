"""Finds the values in a node that holds nothing but secrets: `"tokens": {"agent": "x", "default": "y"}`."""

import re
from collections.abc import Iterator

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.values import STRETCH_BYTES, Checks, Secret
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_NAME = r"(?i:\b(?:[A-Za-z0-9]+[_-])*(?:tokens|secrets|passwords|passwds|credentials|api_?keys))\\*[\"']?"
_OBJECT = r"[ \t]*(?:=>|[:=])\s*[\[{]\s*\\*[\"']?[\w./-]+\\*[\"']?\s*(?:=>|[:=])"
_BLOCK = r":[ \t]*(?:\r?\n|\\+n)[ \t]+[\w./-]+:[ \t]"
NODE_PATTERN = f"{_NAME}(?:{_OBJECT}|{_BLOCK})"
_NODE = compile_bytes(NODE_PATTERN, capture=False)
_BRACE = re.compile(rb"[\[{]")
_BREAK = re.compile(rb"\n|\\n")
# A member of an object, and of a block of YAML. The repetitions have bounds, for this engine goes back.
_MEMBER = re.compile(
    rb"""((?:[\s,]|\\{1,8}n){0,80})\\{0,8}["']?([\w./-]{1,80})\\{0,8}["']?\s{0,8}(?:=>|[:=])\s{0,40}
    \\{0,8}["']([^"'\\\n]{0,4000})\\{0,8}["']""",
    re.VERBOSE,
)
_LINE = re.compile(
    rb"""([ \t]{1,80})([\w./-]{1,80}):[ \t]{1,40}["']?([^\s"'\\]{1,4000})["']?[ \t]{0,40}(?:\r?\n|\\{1,8}n|\Z)"""
)
# Members that stand beside a secret: its user, its place, its kind.
_OTHER = re.compile(
    rb"""(?:\w{1,80}[_.-])?(?:user(?:name)?|login|account|name|id|accessor|type|kind|host(?:name)?|port|url|uri|path|file
    |email|region|provider|realm|scope|role|policy|mode|source|store|from|ref|version|status|description|namespace
    |engine|mount)\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_REASONS = ("placeholder", "strong", "weak")


def find_members(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values of the members of such nodes, up to the first member that is no text."""
    position = 0
    while (node := _NODE.search(data, position)) is not None:
        start, position = node.span()
        if checks.are_used_up():
            position = min(len(data), position + STRETCH_BYTES)
            yield Secret(start, position, "stretch")
            continue
        brace = _BRACE.search(data, start, position)
        member = _MEMBER if brace else _LINE
        at = (brace or _BREAK.search(data, start, position)).end()  # type: ignore[union-attr]  # a node has one
        indent: bytes | None = None
        while (found := member.match(data, at)) is not None and (brace or found[1] == (indent or found[1])):
            indent, at = found[1], found.end()
            if checks.are_used_up():
                break
            if _OTHER.match(found[2]) is None and not is_harmless(Candidate(data, found.span(3)), _REASONS):
                yield Secret(*found.span(3), "token")
        position = max(position, at)
