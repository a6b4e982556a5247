"""Corpora of texts with made-up secrets and of harmless texts, as `corpora/*.txt` describe them."""

import random
import re
import string
import uuid
from dataclasses import dataclass
from pathlib import Path

_BASE64 = string.ascii_letters + string.digits + "+/"
_ALPHABETS = {
    "an": string.ascii_letters + string.digits,
    "hex": "0123456789abcdef",
    "up": string.ascii_uppercase + "234567",
    "lo": string.ascii_lowercase + string.digits,
    "b64_": _BASE64,
    "num": string.digits,
}
_BODY = re.compile(r"<(?:(an|hex|up|lo|b64_|num)(\d+)|uuid)>")
_MARKER = re.compile(r"\[REDACTED:\w+#\d+\]")
_SECRET = re.compile("⟦(.*?)⟧", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A text, the secrets in it, and what stands around these."""

    kind: str
    text: str
    secrets: tuple[str, ...]
    around: str
    is_random: bool = False
    """Whether a secret has parts that a seed made."""


def read(name: str) -> list[Case]:
    """The cases of a corpus. No key is stored in the repository: the random parts come from a seed."""
    lines = (Path(__file__).parent / "corpora" / f"{name}.txt").read_text("utf-8").splitlines()
    return [_case(line, number) for number, line in enumerate(lines) if line and not line.startswith("# ")]


def _case(line: str, number: int) -> Case:
    kind, _, text = line.partition(" | ")
    if "⟦" not in line:
        kind, text = "harmless", line
    source = random.Random(number)  # a seed, so that each run has the same texts

    def body(match: re.Match[str]) -> str:
        if match[1] is None:
            return str(uuid.UUID(int=source.getrandbits(128), version=4))
        made = [source.choice(_ALPHABETS[match[1]]) for _ in range(int(match[2]))]
        return "".join(made)

    filled = _BODY.sub(body, text.replace("␤", "\n"))
    secrets = tuple(_SECRET.findall(filled))
    is_random = any(_BODY.search(secret) for secret in _SECRET.findall(text))
    return Case(kind, _SECRET.sub(r"\1", filled), secrets, _SECRET.sub("\0", filled), is_random)


def left_over(case: Case, masked: str, run: int = 4) -> str | None:
    """
    A run of characters of a secret that is still there, more often than in the text around the secrets.

    A user may have the name that is the password, too: `guest:guest@` is masked as `guest:[REDACTED:password#1]@`.
    """
    without_markers = _MARKER.sub("", masked)
    for secret in case.secrets:
        size = min(run, len(secret))
        for start in range(len(secret) - size + 1):
            piece = secret[start : start + size]
            if without_markers.count(piece) > case.around.count(piece):
                return piece
    return None
