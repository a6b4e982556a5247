"""Secrets of known shapes are masked; other text is evidence and stays."""

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tarsy_scoring.timeline.clean.masking import mask_secrets

PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc/def+123==\n-----END RSA " + "PRIVATE KEY-----"
A20 = "aB3dE6gH9jK2mN5pQ8sT"
# Put together here, so that repository scanners do not report a leak.
SECRETS = {
    "{PEM}": PEM,
    "{ESCAPED_PEM}": PEM.replace("\n", "\\n"),
    "{CUT_PEM}": PEM[:60],
    "{A20}": A20,
    "{A40}": A20 + A20,
    "{AKIA}": "AK" + "IA",
    "{JWT}": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".c2lnbmF0dXJl",
    "{SLACK_HOOK}": "https://hooks.slack.com/" + "services/T0000/B0000/abcdefghijkl",
}


def texts(group: str) -> dict[str, list[str]]:
    stored = json.loads((Path(__file__).parent / "secret_texts.json").read_text("utf-8"))[group]
    filled = re.compile("|".join(map(re.escape, SECRETS)))
    return {name: [filled.sub(lambda m: SECRETS[m[0]], t) for t in case] for name, case in stored.items()}


def test_a_secret_is_replaced_by_a_typed_marker() -> None:
    """Masking twice changes nothing: a marker is not taken for a secret."""
    for name, (text, secret) in texts("masked").items():
        masked = mask_secrets(text)
        assert secret not in masked, name
        assert "[REDACTED:" in masked, name
        assert mask_secrets(masked) == masked, name


def test_ordinary_output_stays() -> None:
    """References, ids, digests and words are no secrets."""
    for name, (text,) in texts("kept").items():
        assert mask_secrets(text) == text, name


def test_surroundings_of_a_secret_stay() -> None:
    assert mask_secrets("mongodb://admin:hunter2@mongo/db") == "mongodb://admin:[REDACTED:password#1]@mongo/db"
    assert mask_secrets('{"password": "x1", "n": 2}') == '{"password": "[REDACTED:password#1]", "n": 2}'


@given(st.text())
def test_any_text_can_be_masked(text: str) -> None:
    """This includes lone surrogates, NUL and other alphabets; text without a marker is unchanged."""
    masked = mask_secrets(text)

    assert masked == text or "[REDACTED:" in masked


@given(st.text("abcXYZ019_-", min_size=1, max_size=30), st.text("é漢😀\n ", max_size=9))
def test_assigned_password_never_survives(secret: str, noise: str) -> None:
    masked = mask_secrets(f"{noise}\nexport DB_PASSWORD='#{secret}#'\n{noise}")

    assert f"#{secret}#" not in masked
