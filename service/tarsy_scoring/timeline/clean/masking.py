"""
Masks secrets in untrusted text before it leaves the process.

Secrets are recognised by their shapes (`shapes`), in Kubernetes Secrets (`manifests`), and by a name or a
word beside them (`named`). Another secret is not recognised. All searches over a text are linear.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache, partial
from types import MappingProxyType

from tarsy_scoring.events import MAX_LABEL_NAME, MAX_LABEL_VALUE
from tarsy_scoring.timeline.clean.manifests import MANIFEST_PATTERN, find_manifests
from tarsy_scoring.timeline.clean.named import NAME_PATTERN, NEARBY_PATTERN, find_named, find_nearby
from tarsy_scoring.timeline.clean.patterns import compile_bytes
from tarsy_scoring.timeline.clean.shapes import (
    COMMANDS,
    ENCODED_PATTERN,
    KEY_PATTERN,
    OUTPUTS,
    PLACES,
    SENTENCES,
    SHAPES,
    TOKENS,
    Rule,
    Rules,
    find_encoded,
    find_keys,
)
from tarsy_scoring.timeline.clean.values import Checks, ChecksUsedUp, Span, join

MASKING_POLICY = "9"
"""Part of the judge's fingerprint: raise it whenever the rules change."""

SECRET_PATTERNS = (
    f"(?:{OUTPUTS.pattern})|{MANIFEST_PATTERN}|{ENCODED_PATTERN}",
    f"{COMMANDS.pattern}|{KEY_PATTERN}|{SHAPES.pattern}|{TOKENS.pattern}",
    f"{NAME_PATTERN}|{SENTENCES.pattern}|{PLACES.pattern}|{NEARBY_PATTERN}",
)
"""
Every text that `Masker` may change matches at least one, alone or between two line ends.

Source: searches of 91 recorded sessions. Other combinations, and one pattern for all, have more states than
RE2 may store, and it searches ten times slower then.
"""

ANY_SECRET = [compile_bytes(pattern, capture=False) for pattern in SECRET_PATTERNS]
_FINDERS = (
    (0, OUTPUTS.find),
    (1, COMMANDS.find),
    *((2, SENTENCES.find), (2, find_named)),
    *((1, SHAPES.find), (1, TOKENS.find), (1, find_keys)),
    (0, find_manifests),
    *((2, PLACES.find), (2, find_nearby)),
)
"""Which of `SECRET_PATTERNS` matches where a finder finds something; `find_encoded` belongs to 0."""

MARKER_PATTERN = r"\[REDACTED:\w{1,20}(?:#[0-9]{1,9})?\]"
_MARKER = re.compile(f"({MARKER_PATTERN})".encode())
_RUN = re.compile(rb"(?<=[A-Za-z0-9])[A-Za-z0-9]*")
_MAX_ENCODINGS = 3


def defuse_markers(data: bytes) -> bytes:
    """Change text that looks like our marker, so that session text cannot imitate one."""
    return (
        data if b"[REDACTED:" not in data else _MARKER.sub(lambda match: b"(" + match[0][1:-1] + b")", data)
    )


class Masking:
    """
    The shipped rules, and an operator's own shapes.

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
    References, placeholders and statuses (`secretKeyRef`, `$VAR`, `token: expired`) stay, too, and so do markers.
    """
    data = text.encode("utf-8", "surrogatepass")
    masked = Masker(masking).mask_bytes(data)
    return text if masked is data else masked.decode("utf-8", "surrogatepass")


def mask_labels(labels: Mapping[str, str], masking: Masking = SHIPPED) -> dict[str, str]:
    """The labels without secrets, also without those that only the name of a label announces."""
    masked: dict[str, str] = {}
    for name, value in labels.items():
        pair = mask_secrets(f"{name}={value}", masking)
        safe = pair.removeprefix(f"{name}=") if pair.startswith(f"{name}=") else mask_secrets(value, masking)
        masked[mask_secrets(name, masking)[:MAX_LABEL_NAME]] = safe[:MAX_LABEL_VALUE]
    return masked


class Masker:
    """
    Masks one session's texts: equal secrets share a number; numbers follow the first appearance.

    The numbers depend on the texts alone. They show that two places hold the same secret, and nothing else.
    """

    def __init__(self, masking: Masking = SHIPPED) -> None:
        self._numbers: dict[bytes, int] = {}
        self._checks = Checks()
        self._own = masking.own

    def mask_bytes(self, data: bytes, groups: Set[int] | None = None) -> bytes:
        """
        Mask UTF-8; returns the same object if there is nothing to mask.

        Args:
            groups: Indices in `ANY_SECRET` that may match, if the caller has searched for them.
        """
        if b"[REDACTED:" in data:  # a marker is no secret, and announces none
            parts = _MARKER.split(data)
            parts[::2] = [self._mask(part, None) for part in parts[::2]]
            return b"".join(parts)
        return self._mask(data, groups)

    def _mask(self, data: bytes, groups: Set[int] | None) -> bytes:
        # Vendors lengthen their tokens: a secret extends over all letters and digits that follow.
        found = find_secrets(data, self._checks, groups=groups, own=self._own)
        secrets = join(Span(start, _run_end(data, end), kind) for start, end, kind in found if end > start)
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


def _run_end(data: bytes, end: int) -> int:
    run = _RUN.match(data, end)
    return run.end() if run else end


def find_secrets(
    data: bytes, checks: Checks, depth: int = 0, groups: Set[int] | None = None, own: Rules | None = None
) -> list[Span]:
    """Find secrets by the shipped rules and an operator's own; `groups` are those of `Masker.mask_bytes`."""
    if groups is None:
        groups = {index for index, pattern in enumerate(ANY_SECRET) if pattern.search(data) is not None}
    finders: list[Callable[[bytes, Checks], Iterator[Span]]] = [own.find] if own else []
    finders += [find for group, find in _FINDERS if group in groups]
    if depth < _MAX_ENCODINGS and 0 in groups:
        finders.append(
            partial(find_encoded, is_secret=lambda text: bool(find_secrets(text, checks, depth + 1)))
        )
    found: list[Span] = []
    for find in finders:
        try:
            found.extend(find(data, checks))
        except ChecksUsedUp as behind:
            found.append(Span(behind.start, len(data), "stretch"))
    return found
