"""
Masks secrets in untrusted text before it leaves the process.

All rules run in one RE2 pass, which is linear in any text: about a millisecond per megabyte. The rules
recognise the shapes in which secrets appear in incident work (headers, assignments, connection strings,
vendor tokens, Kubernetes manifests). A secret without such a shape is not recognised.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import re2

MASKING_POLICY = "2"
"""Part of the judge's fingerprint: raise it with every change of the rules."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """`keep` stays, `secret` becomes `[REDACTED:kind]`, unless `spare` decides that the value is no secret."""

    kind: str
    keep: str
    secret: str
    spare: "Callable[[bytes, bytes, bytes], bool] | None" = None
    after: bytes = b""


# No rule may match across text that could begin the same rule again: each character would be read once per
# match, which is quadratic. Hence no rule begins with `\w*`, and the body of a match stops at its own opener.
_QUOTED = r"""\\+"[^"\\\n]+|"(?:[^"\\\n]|\\[^\n])+|\\*'[^'\\\n]+"""
_BARE = r"""[^\s"'`\\,;&|<>(){}\[\]][^\s"'`\\,;&|<>(){}\[\]]*"""
_VALUE = rf"(?:{_QUOTED}|{_BARE})"
_STRONG = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|(?:api|secret|access|account|private|encryption|signing|master|storage)[_-]?key"
    r"|secret[_-]?access[_-]?key|shared[_-]?access[_-]?key|client[_-]?(?:secret|key[_-]data)|app[_-]?secret"
    r"|(?:auth|access|refresh|id|session|bearer|bot|api|security|personal)[_-]?token|webhook[_-]?secret|auth[_-]?key|_auth)"
)
_WEAK = r"(?:secret|token|credentials?)"
_SEPARATOR = r"""[0-9]{0,3}\\*["']?[ \t]{0,2}(?::=|=>|==?|:)[ \t]*"""
_COMMAND_WORDS = r"(?:[ \t]+[^\s|;&]+){0,6}?[ \t]+"


def _is_placeholder(value: bytes) -> bool:
    """Whether the value is a reference, a boolean or a mask in the place of a secret."""
    return _PLACEHOLDER.fullmatch(value) is not None


_PLACEHOLDER = re.compile(
    rb"""\\*["']?(?:true|false|null|none|nil|undefined|yes|no|required|optional|empty|unset|redacted|hidden|masked"""
    rb"""|\[redacted\S*|%[a-z]|[*xX.?=-]+|\$\$?\w+|\$[({].*|\{\{.*|<.*>?|valueFrom:?|/(?:run|etc|var)/.*)\\*["']?""",
    re.IGNORECASE | re.DOTALL,
)


def _spare_strong(keep: bytes, value: bytes, after: bytes) -> bool:
    if _is_placeholder(value):
        return True
    if keep.lower().endswith(b"pwd=") and value.lstrip(b"\\\"'").startswith(b"/"):
        return True  # the shell's working directory
    # `invalid password: user not found` is prose; `password: hunter2` is not.
    return keep.rstrip(b" \t").endswith(b":") and value.isalpha() and value.islower() and after == b" "


def _spare_weak(keep: bytes, value: bytes, after: bytes) -> bool:
    """`secret` and `token` are ordinary words: the value must look random, which `token: expired` does not."""
    bare = value.strip(b"\\\"'")
    made_up = any(c in b"0123456789" for c in bare) or (not bare.islower() and not bare.isupper()) or len(bare) >= 24
    return len(bare) < 6 or bare.isdigit() or not made_up or _spare_strong(keep, value, after)


def _spare_words(keep: bytes, value: bytes, after: bytes) -> bool:
    """`basic NetworkPolicy`, `basic functionality-test`: only letters, or no digit, upper case or padding."""
    if _is_placeholder(value) or value.isalpha():
        return True
    return value.islower() and not any(c in b"0123456789+/=" for c in value)


def _spare_placeholder(keep: bytes, value: bytes, after: bytes) -> bool:
    return _is_placeholder(value)


def _spare_ids(keep: bytes, value: bytes, after: bytes) -> bool:
    """`-u 1000:1000` names a user and a group."""
    return value.isdigit() or _is_placeholder(value)


_VENDOR_TOKENS = (
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"  # GitHub
    r"|gl(?:pat|dt|ptt|rt|cbt|soat|ft|agent|oas|imt)-[A-Za-z0-9_-]{16,}"  # GitLab
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|sk-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}"  # model providers
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{10,}"  # Stripe
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"  # Google
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|rubygems_[a-f0-9]{40,}|dckr_pat_[A-Za-z0-9_-]{20,}"  # registries
    r"|dop_v1_[a-f0-9]{40,}|hv[sbr]\.[A-Za-z0-9_-]{20,}|dapi[a-f0-9]{32}|sha256~[A-Za-z0-9_-]{40,}"  # platforms
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|glsa_[A-Za-z0-9]{20,}_?[a-f0-9]*|eyJrIjoi[A-Za-z0-9+/=]{20,})"
)

_RULES = (
    _Rule(
        "private_key",
        "",
        r"""-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=\s\\"',:.|>]|-[A-Za-z0-9])*"""
        r"(?:-----END [A-Z0-9 ]{0,30}-----)?",
    ),
    _Rule("private_key", "", r"\bAGE-SECRET-KEY-1[A-Z0-9]{40,}"),
    _Rule(
        "authorization",
        r"""(?i:\bauthorization\\*["']?[ \t]*[:=][ \t]*\\*["']?"""
        r"(?:(?:bearer|basic|token|digest|negotiate|apikey|bot)[ \t]+)?)",
        r"""[^\s"'\\,<>{}\[\]()]+""",
        _spare_words,
    ),
    _Rule("token", r"(?i:\b(?:bearer|basic)[ \t]+)", r"[A-Za-z0-9._~+/=-]{12,}", _spare_words),
    _Rule("cookie", r"""(?i:\b(?:set-)?cookie\\*["']?:[ \t]*\\*["']?)""", r"""[A-Za-z0-9_.-]+=[^\n"'\\]+"""),
    _Rule("jwt", "", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    _Rule("token", "", _VENDOR_TOKENS),
    _Rule("token", r"hooks\.slack\.com/(?:services|workflows)/", r"[A-Za-z0-9/_-]{10,}"),
    _Rule("aws_key", "", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    _Rule(
        "password",
        r"""://[^\s/:@"'<>]*:""",
        r"""(?:[^\s/:@"'<>]|:[^\s/:@"'<>])+@""",
        lambda _, value, __: _is_placeholder(value[:-1]),
        after=b"@",
    ),
    _Rule("token", r"(?i:[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential))=)", r"[A-Za-z0-9%+/=_-]{16,}"),
    _Rule("password", rf"(?i:{_STRONG}{_SEPARATOR})", _VALUE, _spare_strong),
    _Rule("token", rf"(?i:{_WEAK}{_SEPARATOR})", _VALUE, _spare_weak),
    _Rule(
        "password",
        rf"(?i:--(?:[a-z]+-){{0,3}}(?:{_STRONG}|token|secret)[ \t]+)",
        rf"(?:{_QUOTED}|[^\s\"'`\\,;&|<>()\[\]{{}}-][^\s\"'`\\,;&|<>(){{}}\[\]]*)",
        _spare_placeholder,
    ),
    _Rule(
        "password",
        rf"""(?i:\bname\\*["']?:[ \t]*\\*["']?[a-z0-9_.-]*(?:{_STRONG}|{_WEAK})[0-9]{{0,3}}\\*["']?"""
        r"""(?:\s|\\n|,|-){0,60}\\*["']?value\\*["']?:[ \t]*)""",
        _VALUE,
        _spare_placeholder,
    ),
    _Rule(
        "password",
        r"""(?:\s-u[ \t]*|\s--user[= \t])\\*["']?[^\s:"'@/\\-][^\s:"'@/\\]*:""",
        r"""[^\s"'@\\/:]+""",
        _spare_ids,
    ),
    _Rule("password", rf"\b(?:mysql(?:dump|admin|check)?|mariadb){_COMMAND_WORDS}-p", _VALUE, _spare_placeholder),
    _Rule("password", rf"\b(?:sshpass|mongo(?:sh|dump)?){_COMMAND_WORDS}-p[ \t]*", _VALUE, _spare_placeholder),
    _Rule("password", rf"\bredis-cli{_COMMAND_WORDS}-a[ \t]+", _VALUE, _spare_placeholder),
    _Rule("password", r"""\\*["']auth\\*["'][ \t]*:[ \t]*""", r"""\\*["'][A-Za-z0-9+/=]{8,}"""),
)


def _options(*, capture: bool) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes in, bytes out: no offsets to convert
    options.max_mem = 32 << 20  # room for the DFA; when it runs out RE2 gets slower, not wrong
    options.log_errors = False
    options.never_capture = not capture
    return options


def compile_bytes(pattern: str, *, capture: bool = True) -> "re2._Regexp":
    """An RE2 over UTF-8 bytes; without captures it always runs in the DFA."""
    return re2.compile(pattern.encode(), _options(capture=capture))


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
    """`mask_secrets` over UTF-8; returns the same object if there is nothing to mask."""
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
        value = data[start:end]
        if rule.spare is not None and rule.spare(data[match.start() : start], value, data[end : end + 1]):
            continue
        opening = value[: len(value) - len(value.lstrip(b"\\\"'"))]
        pieces += (data[position:start], opening, b"[REDACTED:", rule.kind.encode(), b"]", rule.after)
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
