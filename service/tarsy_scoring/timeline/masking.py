"""
Masks secrets in untrusted text before it leaves the process.

All rules run in one RE2 pass, which is linear in any text: about a millisecond per megabyte. The rules
recognise the shapes in which secrets appear in incident work (headers, assignments, connection strings,
vendor tokens, Kubernetes manifests). A secret without such a shape is not recognised.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tarsy_scoring.timeline.patterns import compile_bytes, read_rules

MASKING_POLICY = "2"
"""Part of the judge's fingerprint: raise it with every change of the rules."""


_PLACEHOLDER = re.compile(
    rb"""\\*["']?(?:true|false|null|none|nil|undefined|yes|no|required|optional|empty|unset|redacted|hidden|masked"""
    rb"""|\[redacted\S*|%[a-z]|[*xX.?=-]+|\$\$?\w+|\$[({].*|\{\{.*|<.*>?|valueFrom:?|/(?:run|etc|var)/.*)\\*["']?""",
    re.IGNORECASE | re.DOTALL,
)


def _is_harmless_password(keep: bytes, value: bytes, after: bytes) -> bool:
    """Whether the value behind a name such as `password` or `api_key` is a directory or a word of prose."""
    if keep.lower().endswith(b"pwd=") and value.lstrip(b"\\\"'").startswith(b"/"):
        return True  # the shell's working directory
    # `invalid password: user not found` is prose; `password: hunter2` is not.
    return keep.rstrip(b" \t").endswith(b":") and value.isalpha() and value.islower() and after == b" "


def _is_harmless_token(keep: bytes, value: bytes, after: bytes) -> bool:
    """
    Whether the value behind `secret`, `token` or `credential` does not look random, as in `token: expired`.

    These names are ordinary words, so only a value that looks random is a secret.
    """
    bare = value.strip(b"\\\"'")
    made_up = any(c in b"0123456789" for c in bare) or (not bare.islower() and not bare.isupper()) or len(bare) >= 24
    return len(bare) < 6 or bare.isdigit() or not made_up or _is_harmless_password(keep, value, after)


def _is_prose(_keep: bytes, value: bytes, _after: bytes) -> bool:
    """Whether the value is prose (`basic NetworkPolicy`): letters only, or no digit, capital or padding."""
    return value.isalpha() or (value.islower() and not any(c in b"0123456789+/=" for c in value))


# By the `unless` of a rule: the check for values that are no secret, beside references, booleans and masks.
_HARMLESS: dict[str, Callable[[bytes, bytes, bytes], bool]] = {
    "placeholders": lambda *_: False,
    "harmless_password": _is_harmless_password,
    "harmless_token": _is_harmless_token,
    "prose": _is_prose,
    "numbers": lambda _, value, __: value.isdigit(),  # `-u 1000:1000` names a user and a group
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of `secrets.yaml`, where the keys are explained."""

    kind: str
    secret: str
    keep: str = ""
    unless: str | None = None
    after: str = ""

    def is_harmless(self, keep: bytes, value: bytes, after: bytes) -> bool:
        """Whether the value that stands where a secret would stand is no secret."""
        if self.unless is None:
            return False
        return _PLACEHOLDER.fullmatch(value) is not None or _HARMLESS[self.unless](keep, value, after)


_RULES = [_Rule(**rule) for rule in read_rules("secrets.yaml", "rules")]
_MANIFEST_PATTERN = r"""\bkind\\*["']?[ \t]*:[ \t]*\\*["']?Secret\\*["']?\s*(?:[,}\n]|\\n|\z)"""
SECRET_PATTERN = "|".join([*(f"{_r.keep}{_r.secret}" for _r in _RULES), _MANIFEST_PATTERN])
"""Matches every text that `mask_bytes` may change."""

_SECRET = compile_bytes("|".join(f"({_r.keep})({_r.secret})" for _r in _RULES))
# RE2 leaves the DFA for small texts when captures are requested, so the search for any match is a pattern of
# its own.
_ANY_SECRET = compile_bytes(SECRET_PATTERN, capture=False)


def mask_secrets(text: str) -> str:
    """
    Replace each recognised secret by a typed marker such as `[REDACTED:password]`.

    The text around it (key, header name, user, host) stays, so that the judge still sees the action.
    References and placeholders (`secretKeyRef`, `$VAR`, `<set to the key ...>`) stay, too. Idempotent and
    linear.
    """
    data = text.encode("utf-8", "surrogatepass")
    masked = mask_bytes(data)
    return text if masked is data else masked.decode("utf-8", "surrogatepass")


def mask_bytes(data: bytes) -> bytes:
    """Do the same as `mask_secrets` for UTF-8; returns the same object if there is nothing to mask."""
    if _ANY_SECRET.search(data) is None:
        return data
    if _MANIFEST.search(data) is not None:
        data = _mask_secret_manifests(data)
    pieces: list[bytes] = []
    position = 0
    for match in _SECRET.finditer(data):
        secret_group = match.lastindex
        rule = _RULES[secret_group // 2 - 1]
        start, end = match.span(secret_group)
        value = data[start:end].removesuffix(rule.after.encode())
        if rule.is_harmless(data[match.start() : start], value, data[end : end + 1]):
            continue
        opening = value[: len(value) - len(value.lstrip(b"\\\"'"))]
        pieces += (data[position:start], opening, f"[REDACTED:{rule.kind}]{rule.after}".encode())
        position = end
    return b"".join((*pieces, data[position:])) if pieces else data


# --- Kubernetes Secrets: their values have no shape, so the kind of the document identifies them ---------

_MANIFEST = compile_bytes(_MANIFEST_PATTERN, capture=False)
_DOCUMENT = re.compile(rb"(?=apiVersion)")
_JSON_DATA = compile_bytes(r"""(\b(?:data|stringData)\\*["'][ \t]*:\s*)\{([^{}]*)\}""")
_JSON_VALUE = compile_bytes(r"""(:\s*\\*["'])[^"'\\]+""")
_YAML_DATA = re.compile(rb"([ \t]*)(?:data|stringData):[ \t]*")
_YAML_VALUE = re.compile(rb"([ \t]*(?:- )?[^\s:]+:[ \t]*)(\S.*)")


def _mask_secret_manifests(data: bytes) -> bytes:
    documents = _DOCUMENT.split(data)
    return b"".join(_mask_manifest(d) if _MANIFEST.search(d) else d for d in documents)


def _mask_manifest(document: bytes) -> bytes:
    """Mask the values under `data:` and `stringData:`, in JSON and in YAML."""
    document = _JSON_DATA.sub(
        lambda m: m[1] + b"{" + _JSON_VALUE.sub(rb"\1[REDACTED:secret]", m[2]) + b"}",
        document,
    )
    lines = document.split(b"\n")
    block_indent = -1
    for number, line in enumerate(lines):
        if opened := _YAML_DATA.fullmatch(line.rstrip()):
            block_indent = len(opened[1])
        elif block_indent >= 0 and line.strip():
            if len(line) - len(line.lstrip()) <= block_indent:
                block_indent = -1
            elif entry := _YAML_VALUE.fullmatch(line):
                lines[number] = entry[1] + b"[REDACTED:secret]"
            else:  # a line of a block scalar
                lines[number] = line[: len(line) - len(line.lstrip())] + b"[REDACTED:secret]"
    return b"\n".join(lines)
