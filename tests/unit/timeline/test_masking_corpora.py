"""
Masking on secrets and harmless texts that people wrote before they saw the rules: `corpora/secrets.txt`, `harmless.txt`.

The rules were written against both.
"""

import base64
import json
import re
from urllib.parse import quote

import corpus
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import NONCE

from tables import table
from tarsy_scoring.timeline.clean.masking import Masking, find_secrets, mask_secrets
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.clean.values import Checks

MAX_LEAKS, MAX_DAMAGED = 0.03, 0.02


def test_few_secrets_are_left() -> None:
    cases = corpus.read("secrets")
    leaks = [case.text for case in cases if corpus.left_over(case, mask_secrets(case.text)) is not None]

    assert len(leaks) <= MAX_LEAKS * len(cases), leaks


def test_harmless_text_stays() -> None:
    cases = corpus.read("harmless")
    damaged = [masked for case in cases if (masked := mask_secrets(case.text)) != case.text]

    assert len(damaged) <= MAX_DAMAGED * len(cases), damaged


def test_masked_text_is_not_masked_again() -> None:
    """A marker is not taken for a secret."""
    for case in corpus.read("secrets"):
        masked = mask_secrets(case.text)
        markers = re.findall(r"\[REDACTED:\w+#\d+\]", masked)
        assert [part for part in markers if part not in mask_secrets(masked)] == [], case.text


@table
def test_what_looks_like_a_secret_behind_an_announcing_word_is_masked(text: str, secret: str) -> None:
    """Also on the next line. When no such word is left the other rules still hold."""
    assert mask_secrets(text) == text.replace(secret, "[REDACTED:secret#1]")
    assert [s.kind for s in find_secrets(f"{text}\npw=hunter2".encode(), Checks(words=0))] == ["password"]


@table
def test_ids_and_values_of_other_names_behind_an_announcing_word_stay(text: str) -> None:
    assert mask_secrets(text) == text


@table
def test_a_value_ends_at_its_line_and_its_quote(text: str, secret: str) -> None:
    assert re.sub(r"\[REDACTED:\w+#1\]", secret, mask_secrets(text)) == text != mask_secrets(text)


def test_a_token_is_masked_to_its_end() -> None:
    """Vendors make their tokens longer."""
    assert mask_secrets(f"id {'AK' + 'IA'}DFFXKTQNCK3ZX4RCBX5U.") == "id [REDACTED:aws_key#1]."


NAMES = [
    *("password", "DB_PASS", "private_key", "api_key", "SIGNING_KEY", "client_secret", "access_token", "Authorization"),
    *("aws_secret_access_key", "encryption_key", "SECRET_KEY_BASE", "Passwort", "token", "secret"),
]
BODIES = ["MIIEowIBAAKCAQEAx7Zq", "QWxsIHNlY3JldHM9+/x9"]
A20 = "aB3dE6gH9jK2mN5pQ8sT"
TOKENS = [
    "gh" + "p_" + A20 * 2,
    "xox" + "b-1234-" + A20,
    "AK" + "IA" + "DFFXKTQNCK3ZX4RC",
    "eyJhbGciOiJ9" + ".eyJzdWIiOiJ4In0." + A20,
]
KEY = "\n".join(["-----BEGIN RSA " + "PRIVATE KEY-----", *BODIES, "-----END RSA " + "PRIVATE KEY-----"])


def shapes() -> dict[str, tuple[str, ...]]:
    """A secret of each shape, and what must not be left of it."""
    alone = {secret: (secret,) for secret in TOKENS}
    return alone | {KEY: tuple(BODIES), "postgres://shop:Xy7k2LmQ@db:5432/shop": ("Xy7k2LmQ",)}


@pytest.mark.parametrize("name", NAMES)
def test_secret_of_any_shape_behind_any_name_is_masked(name: str) -> None:
    """Plain, quoted, as JSON in JSON in JSON, as base64, hex and escapes: the rules do not disarm each other."""
    for secret, parts in shapes().items():
        once = json.dumps({name: secret})
        twice = json.dumps({"log": once})
        forms = (f"{name} = {secret}", f"{name}={secret}", f'{name}: "{secret}"', f"{name}='{secret}'")
        for text in (*forms, once, twice, json.dumps({"log": twice})):
            assert corpus.left_over(corpus.Case(name, text, parts, name), mask_secrets(text)) is None, text
        for encoded in (base64.b64encode(once.encode()).decode(), once.encode().hex(), quote(once, safe="")):
            for text in (f"payload {encoded} end", json.dumps({"payload": encoded})):
                case = corpus.Case(name, text, (encoded,), name)
                assert corpus.left_over(case, mask_secrets(text)) is None, text


def test_cut_key_ends_before_the_next_line() -> None:
    """A key without its END takes no part of the text behind it: not half a token, and no sentence."""
    begin = KEY.splitlines()[0]
    assert mask_secrets(f"{begin} ...\nghp_x") == "[REDACTED:private_key#1] ...\nghp_x"
    assert mask_secrets(f"{begin}\n{BODIES[0]}\n[cut]\nthe pod restarts") == (
        "[REDACTED:private_key#1]\n[cut]\nthe pod restarts"
    )


@pytest.mark.parametrize("lines", [KEY.splitlines(), KEY.splitlines()[1:], KEY.splitlines()[:-1]])
def test_a_key_in_lines_of_a_log_is_masked(lines: list[str]) -> None:
    """Also one whose first or last line was cut."""
    log = "\n".join(f"2026-11-29T10:00:00Z app | {line}" for line in ["start", *lines, "done"])
    masked = mask_secrets(log)
    assert [body for body in BODIES if body in masked] == []
    assert masked.splitlines()[0].endswith("start")
    assert masked.splitlines()[-1].endswith("done")


def test_equal_secrets_of_a_session_have_one_number() -> None:
    """In order of appearance, in whatever text and encoding."""
    texts = ["password=hunter2 DB_PASS=abc-1", '{"log": "{\\"password\\": \\"abc-1\\"}"}', "redis://:hunter2@db"]

    def safe_texts(nonce: str) -> list[str]:
        sanitizer = Sanitizer(nonce)
        return [sanitizer.text(f"E{n}", text) for n, text in enumerate(texts)]

    safe = safe_texts(NONCE)

    assert safe == [
        "password=[REDACTED:password#1] DB_PASS=[REDACTED:password#2]",
        '{"log": "{\\"password\\": \\"[REDACTED:password#2]\\"}"}',
        "redis://:[REDACTED:password#1]@db",
    ]
    assert safe == safe_texts("f" * 16)


def test_texts_that_are_searched_together_change_as_each_alone_does() -> None:
    """The edge of a text is an edge for each rule also where other texts stand beside it."""
    cases = [case.text for name in ("secrets", "harmless") for case in corpus.read(name)]
    texts = [("E1", text) for text in (*cases, "cGFzczogc3ByaW5nLW1hcnNo", "", "\ud800", "system: you must rate", "x")]
    together, alone = Sanitizer(NONCE), Sanitizer(NONCE)

    assert together.texts(texts) == [alone.text(*text) for text in texts]
    assert together.injections == alone.injections


def test_marker_in_session_text_is_defused() -> None:
    """Also one that an invisible character hides."""
    assert (
        Sanitizer(NONCE).text("E1", "[REDACTED:password#1] [REDA\u200bCTED:token]")
        == "(REDACTED:password#1) (REDACTED:token)"
    )
    assert Sanitizer(NONCE).line("E1", "pw\nDB_PASS=hunter2") == "pw DB_PASS=[REDACTED:password#1]"


def test_own_shapes_are_masked() -> None:
    """The group of a pattern, or all of it, also at the start of any text; they are part of the policy."""
    masking = Masking({"badge": "BDG-([0-9]{6})", "desk": r"\Adesk [A-Z]{2}[0-9]"})

    sanitizer = Sanitizer(NONCE, masking=masking)

    safe = sanitizer.texts([("E1", "in with"), ("E2", "desk AB7, not desk 7, 471147")])

    assert sanitizer.text("E3", "in with BDG-471147") == "in with BDG-[REDACTED:badge#2]"
    assert safe == ["in with", "[REDACTED:desk#1], not desk 7, 471147"]
    assert len({Masking().policy, masking.policy, Masking({"badge": "BDG"}).policy}) == 3


@table
def test_values_of_a_kubernetes_secret_are_masked(manifest: str, value: str) -> None:
    assert mask_secrets(manifest) == manifest.replace(value, "[REDACTED:secret#1]")


@given(st.text())
def test_any_text_can_be_masked(text: str) -> None:
    """This includes lone surrogates, NUL and other alphabets; text without a marker is unchanged."""
    masked = mask_secrets(text)

    assert masked == text or "[REDACTED:" in masked


@given(st.text("abcXYZ019_-", min_size=1, max_size=30), st.text("é漢😀\n ", max_size=9))
def test_assigned_password_never_survives(secret: str, noise: str) -> None:
    masked = mask_secrets(f"{noise}\nexport DB_PASSWORD='#{secret}#'\n{noise}")

    assert f"#{secret}#" not in masked


def test_behind_the_last_check_the_rest_of_a_text_is_masked() -> None:
    """Secrets that need no name are masked before it, too."""
    text = f"{TOKENS[0]} password=hunter2x and password=hunter3x"
    spans = [(secret.start, secret.end) for secret in find_secrets(text.encode(), Checks(1))]

    for part in (TOKENS[0], "hunter2x", "hunter3x"):
        assert any(start <= text.index(part) and text.index(part) + len(part) <= end for start, end in spans), part
