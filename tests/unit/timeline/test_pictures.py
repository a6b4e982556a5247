"""Base64 of 1 KB and more is replaced by kind and size, wherever it stands and however it is written."""

import base64
import json
import random

import pytest
from attacks import PLACES
from sessions import NONCE

from cpu import cpu_s
from tarsy_scoring.timeline.clean.pictures import replace_pictures
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.render.context import build_context

NOISE = random.Random(35).randbytes(102_400)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0" + NOISE[9:]).decode()
LINES = base64.encodebytes(NOISE).decode().strip()
OTHER = base64.b64encode(b"\1" + NOISE[1:30_720]).decode()
TOKEN = OTHER.replace("/", "_").replace("+", "-")
NESTED = json.dumps({"log": json.dumps({"data": LINES})})
REPLACED: dict[str, tuple[str, str]] = {
    "data URL": (f"![x](data:image/png;base64,{PNG})", "![x]([image/png, 100 KB])"),
    "data URL with parameters": (f"'data:a/svg+xml;charset=utf-8;base64,{OTHER}'", "'[a/svg+xml, 30 KB]'"),
    "block of a model's API": (json.dumps({"data": PNG}), '{"data": "[image/png, 100 KB]"}'),
    "unknown kind": (f"a {OTHER}. B", "a [base64, 30 KB]. B"),
    "escaped slashes": (f"a {PNG} b".replace("/", r"\/"), "a [image/png, 102 KB] b"),
    "behind a secret's name": (f"password: {OTHER}\nuser: bob", "password: [base64, 30 KB]\nuser: bob"),
    "value of a Secret": (
        f"kind: Secret\ndata:\n  a: {OTHER}\n  b: aHVudGVyMg==",
        "kind: Secret\ndata:\n  a: [base64, 30 KB]\n  b: [REDACTED:secret#1]",
    ),
    "lines": (f"at 10:02\n{LINES}\nat 10:03", "at 10:02\n[base64, 101 KB]\nat 10:03"),
    "lines in JSON in JSON": (NESTED, r'{"log": "{\"data\": \"[base64, 104 KB]\"}"}'),
}
KEPT = [OTHER[:1000], "A" * 3000, "-" * 3000, "deadbeef01" * 300, "A1 pod restarts and the node is ready " * 100]


@pytest.mark.parametrize(("text", "shown"), REPLACED.values(), ids=REPLACED)
def test_base64_is_replaced(text: str, shown: str) -> None:
    assert Sanitizer(NONCE).text("E1", text) == shown


def test_other_long_runs_stay() -> None:
    assert [text[:20] for text in KEPT if replace_pictures(text.encode()) != text.encode()] == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{LINES[:3000]}\n-----END RSA {'PRIVATE'} KEY-----", "private_key"),
        (f"x eyJhbGciOiJSUzI1NiJ9.{TOKEN[:2000]}.{TOKEN[:300]}", "jwt"),
    ],
    ids=["key", "token"],
)
def test_long_secrets_are_masked_whole(text: str, kind: str) -> None:
    """Replacing a part of one would leave the rest, or give two secrets of one length one number."""
    assert Sanitizer(NONCE).text("E1", text).removeprefix("x ") == f"[REDACTED:{kind}#1]"


@pytest.mark.parametrize("place", ["alert", "tool result", "tool arguments", "final analysis", "runbook"])
def test_a_picture_costs_little_in_every_place(place: str) -> None:
    """Also in an alert, which is never shortened."""
    context = build_context(PLACES[place](f"data:image/png;base64,{PNG[:-2] * 4}"), NONCE, 2_000)

    assert "[image/png, 400 KB]" in context.alert + context.conversation
    assert "context_shortened" not in context.flags


HOSTILE = ["a" * 59 + "\n", "\\n", "\\", "data:a;base64,", ";a", "-----BEGIN A-----", "%2B", "Aa1" * 30 + "\n "]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_costs_little(unit: str) -> None:
    """Also before the end of a token, where a run is no picture."""
    data = f"data:a{unit * (1_800_000 // len(unit))}.A {'Aa1' * 500}".encode()
    assert cpu_s(lambda: replace_pictures(data)) < 2
