"""
Replaces pictures and other files that stand in a text as base64, by their kind and size: `[image/png, 100 KB]`.

They cost tokens and tell a judge nothing. PEM and JWT stay: the rules of secrets know them.
"""

import re

from tarsy_scoring.timeline.clean.harmless import is_mixed
from tarsy_scoring.timeline.clean.patterns import compile_bytes

_LEAST_BYTES = 1_024
_STEP, _PROBE = 512, 64  # each run of `_LEAST_BYTES` holds a whole probe
_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-=%\\ \r\n"
# PEM, or a run with or without the head of a data URL. Its lines end in real or written line ends, with blanks behind.
_RUN = re.compile(
    rb"""-----BEGIN[^\n\\-]{1,60}-----(?:[A-Za-z0-9+/=_-]++|\\++[nr/]|\s++)*+
    |(?:data:(?P<kind>[\w.+/-]{0,80})(?:;[\w=.+-]{1,40}){0,4};base64,|(?<=\\[nrt])|(?<![A-Za-z0-9+/_.\\-]))
    (?P<run>(?=[A-Za-z0-9+/_\\%-]{60})
    (?:[A-Za-z0-9+/_-]++|\\++/|%2[BFbf]|(?:\r?\n|\\++r?\\*+n)[ \t]*+(?=[A-Za-z0-9+/_\\%-]{60}))++
    (?:(?:\r?\n|\\++r?\\*+n)[ \t]*+[A-Za-z0-9+/_-]+(?=[=\s\\"'<)]|\Z))?(?:=|%3[Dd]){0,2})""",
    re.VERBOSE,
)
_PART_OF_TOKEN = re.compile(rb"\.[A-Za-z0-9_-]")  # behind the header of a JWT
_LONG, _HEAD_BYTES = compile_bytes(r"[A-Za-z0-9+/_\\%-]{60}", capture=False), 300
_KINDS = {
    b"iVBORw0KGg": b"image/png",
    b"/9j/": b"image/jpeg",
    b"R0lGOD": b"image/gif",
    b"JVBERi0": b"application/pdf",
}


def replace_in_texts(texts: list[bytes]) -> list[bytes]:
    """The texts after `replace_pictures`, of which few hold one: one look at all of them comes first."""
    return [*map(replace_pictures, texts)] if _may_hold(b"\n".join(texts)) else texts


def replace_pictures(data: bytes) -> bytes:
    """Replace each data URL and run of base64 from 1 KB on, in linear time; the same object if there is none."""
    if len(data) < _LEAST_BYTES or not _may_hold(data):
        return data
    pieces: list[bytes] = []
    position = 0
    # RE2 leaps to the next long run; Python's engine then reads it, with looks behind that RE2 lacks.
    while (long := _LONG.search(data, position)) is not None:
        found = _RUN.search(data, max(position, long.start() - _HEAD_BYTES))
        if found is None:
            break
        pieces += (data[position : found.start()], _described(found))
        position = found.end()
    return b"".join((*pieces, data[position:]))


def _may_hold(data: bytes) -> bool:
    """Whether a text, or one of texts that line ends join, may hold a long run."""
    probes = (data[at : at + _PROBE] for at in range(0, len(data) - _PROBE, _STEP))
    return any(not p.translate(None, _CHARACTERS) and len(p.split()) <= 3 and is_mixed(p) for p in probes)


def _described(found: "re.Match[bytes]") -> bytes:
    run = found["run"]
    is_token = _PART_OF_TOKEN.match(found.string, found.end())
    if run is None or len(run) < _LEAST_BYTES or is_token or not is_mixed(run):
        return found[0]
    known = next((kind for start, kind in _KINDS.items() if run.startswith(start)), b"base64")
    return b"[%s, %d KB]" % (found["kind"] or known, round(len(run) * 3 / 4 / 1_024) or 1)
