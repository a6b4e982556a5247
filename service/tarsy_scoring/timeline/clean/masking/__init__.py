"""
Masks secrets in untrusted text before it leaves the process.

Secrets are recognised by their shapes: private keys, tokens of vendors, values behind names, headers, options
and
URLs, Kubernetes Secrets, and base64 of any of these; and by their characters, behind a word that announces a
secret.
Another secret is not recognised. All searches over a text are RE2 and linear.
"""

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Set
from functools import lru_cache
from types import MappingProxyType

from tarsy_scoring.timeline.clean.masking.encodings import ENCODED_PATTERN, find_encoded
from tarsy_scoring.timeline.clean.masking.keys import KEY_PATTERN, find_keys
from tarsy_scoring.timeline.clean.masking.manifests import MANIFEST_PATTERN, find_manifests
from tarsy_scoring.timeline.clean.masking.names import NAME_PATTERN, find_named
from tarsy_scoring.timeline.clean.masking.nearby import NEARBY_PATTERN, find_nearby
from tarsy_scoring.timeline.clean.masking.nodes import NODE_PATTERN, find_members
from tarsy_scoring.timeline.clean.masking.rules import (
    COMMANDS,
    LINES,
    OUTPUTS,
    PLACES,
    SENTENCES,
    SHAPES,
    TOKENS,
    Rule,
    Rules,
)
from tarsy_scoring.timeline.clean.masking.tables import TABLE_PATTERN, find_columns
from tarsy_scoring.timeline.clean.masking.values import Checks, Secret
from tarsy_scoring.timeline.clean.patterns import compile_bytes

MASKING_POLICY = "6"
"""Part of the judge's fingerprint: raise it with every change of the rules."""

SECRET_PATTERNS = (
    "|".join((OUTPUTS.pattern, LINES.pattern)),
    "|".join((TABLE_PATTERN, COMMANDS.pattern)),
    "|".join((NAME_PATTERN, SENTENCES.pattern)),
    "|".join((KEY_PATTERN, ENCODED_PATTERN, MANIFEST_PATTERN, NODE_PATTERN, SHAPES.pattern, TOKENS.pattern)),
    "|".join((PLACES.pattern, NEARBY_PATTERN)),
)
"""
One of them matches every text that `Masker` may change.

Together they have more states than RE2 may store, and it searches ten times slower then. In these groups they
fit, for the texts of 91 recorded sessions: 1.7 ms for 100 KB.
"""

ANY_SECRET = [compile_bytes(pattern, capture=False) for pattern in SECRET_PATTERNS]
MARKER_PATTERN = r"\[REDACTED:\w{1,20}(?:#[0-9]{1,9})?\]"
_MARKER = re.compile(MARKER_PATTERN.encode())
_RUN = re.compile(rb"(?<=[A-Za-z0-9])[A-Za-z0-9]*")


def defuse_markers(data: bytes) -> bytes:
    """Change text that looks like a marker of this module, so that session text cannot pretend to be one."""
    return (
        data if b"[REDACTED:" not in data else _MARKER.sub(lambda match: b"(" + match[0][1:-1] + b")", data)
    )


class Masking:
    """
    The rules of a deployment: those of this package, and an operator's own shapes.

    Args:
        extra_patterns: RE2 patterns by kind; the secret is the group of a pattern, or all of it.
    """

    def __init__(self, extra_patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        listed = sorted(extra_patterns.items())
        self.own = Rules([Rule(kind, pattern) for kind, pattern in listed]) if listed else None
        self.policy = MASKING_POLICY
        if listed:
            self.policy += "+" + hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


SHIPPED = Masking()


@lru_cache(8)
def _masking(listed: tuple[tuple[str, str], ...]) -> Masking:
    return Masking(dict(listed))


def masking_of(extra_patterns: Mapping[str, str]) -> Masking:
    """The rules with an operator's own; compiled once per process."""
    return _masking(tuple(extra_patterns.items())) if extra_patterns else SHIPPED


def mask_secrets(text: str, masking: Masking = SHIPPED) -> str:
    """
    Replace each recognised secret by a marker such as `[REDACTED:password#1]`.

    The text around it (key, header name, user, host) stays, so that the judge still sees the action.
    References, placeholders and statuses (`secretKeyRef`, `$VAR`, `token: expired`) stay, too. Idempotent and
    linear.
    """
    data = text.encode("utf-8", "surrogatepass")
    masked = Masker(masking).mask_bytes(data)
    return text if masked is data else masked.decode("utf-8", "surrogatepass")


class Masker:
    """
    Masks the texts of one session: equal secrets get the same number, in order of appearance.

    The numbers depend on the texts alone. They show that two places hold the same secret, and nothing else of
    it.
    """

    def __init__(self, masking: Masking = SHIPPED) -> None:
        self._numbers: dict[bytes, int] = {}
        self._checks = Checks()
        self._own = masking.own

    def mask_bytes(self, data: bytes, groups: Set[int] | None = None) -> bytes:
        """
        Mask UTF-8; returns the same object if there is nothing to mask.

        Args:
            groups: Numbers of the `SECRET_PATTERNS` that may match, if the caller has searched for them.
        """
        own = list(self._own.find(data, self._checks)) if self._own else []
        secrets = _merged(data, own + find_secrets(data, self._checks, groups=groups))
        if not secrets:
            return data
        pieces: list[bytes] = []
        position = 0
        for start, end, kind in secrets:
            value = data[start:end].strip(b"\\\"' \t\r\n")
            number = self._numbers.setdefault(value, len(self._numbers) + 1)
            pieces += (data[position:start], b"[REDACTED:%s#%d]" % (kind.encode(), number))
            position = end
        return b"".join((*pieces, data[position:]))


def find_secrets(data: bytes, checks: Checks, depth: int = 0, groups: Set[int] | None = None) -> list[Secret]:
    """The secrets of a text by the rules of this package; they may overlap."""
    if groups is None:
        groups = {group for group, pattern in enumerate(ANY_SECRET) if pattern.search(data) is not None}
    is_printed, in_command, is_named, has_shape, has_place = (
        group in groups for group in range(len(ANY_SECRET))
    )
    found: list[Secret] = []
    if has_shape:
        found += SHAPES.find(data, checks)
        found += TOKENS.find(data, checks)
    if is_named:
        found += SENTENCES.find(data, checks)
        found += find_named(data, checks)
    if has_shape:
        found += find_keys(data)
        found += find_manifests(data, checks)
        found += find_members(data, checks)
    if in_command:
        found += find_columns(data, checks)
    if has_place:
        found += PLACES.find(data, checks)
    if is_printed:
        found += OUTPUTS.find(data, checks)
        found += LINES.find(data, checks)
    if in_command:
        found += COMMANDS.find(data, checks)
    if has_place and depth == 0:
        found += find_nearby(data, checks)
    if has_shape and depth < _MAX_ENCODINGS:
        found += find_encoded(data, checks, lambda decoded: bool(find_secrets(decoded, checks, depth + 1)))
    return found


_MAX_ENCODINGS = 3


def _merged(data: bytes, secrets: list[Secret]) -> list[Secret]:
    """
    Join what overlaps; the kind is that of the first finder. Markers of an earlier masking are no secrets.

    A secret goes on to the end of its letters and digits, for vendors make their tokens longer.
    """
    merged: list[Secret] = []
    markers = [found.span() for found in _MARKER.finditer(data)] if b"[REDACTED:" in data else []
    for start, end, kind in sorted(secrets, key=lambda secret: secret.start):  # stable
        if merged and end <= merged[-1].end:
            continue
        run = _RUN.match(data, end)
        whole = Secret(start, run.end() if run else end, kind)
        if merged and start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=whole.end)
        elif end > start and not _touches(markers, whole):
            merged.append(whole)
    return merged


def _touches(markers: list[tuple[int, int]], secret: Secret) -> bool:
    at = bisect_left(markers, (secret.end,)) - 1
    return at >= 0 and markers[at][1] > secret.start
