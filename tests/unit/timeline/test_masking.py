"""Secrets of known shapes are masked; other text is evidence and stays."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_scoring.timeline.masking import mask_secrets

A20 = "aB3dE6gH9jK2mN5pQ8sT"
A40 = A20 + A20
# Put together here, so that no scanner of repositories takes a test for a leak.
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc/def+123==\n-----END RSA " + "PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".c2lnbmF0dXJl"
SLACK_HOOK = "https://hooks.slack.com/" + "services/T0000/B0000/abcdefghijkl"

MASKED = {
    "bearer": (f"curl -H 'Authorization: Bearer {A20}' x", A20),
    "bearer alone": (f"sent Bearer {A20}.", A20),
    "basic header": ("Authorization: Basic YWRtaW46aHVudGVyMg==", "YWRtaW46"),
    "header in json": ('{"Authorization": "token abc123def"}', "abc123def"),
    "cookie": ("Cookie: session=abcdef123456; theme=dark", "abcdef123456"),
    "jwt": (f"got {JWT} back", JWT),
    "private key": (f"key:\n{PEM}\nend", "MIIEowIBAAKCAQEA"),
    "private key escaped": (PEM.replace("\n", "\\n"), "MIIEowIBAAKCAQEA"),
    "private key cut": (PEM[:60], "MIIEowIBAAKCAQ"),
    "age key": ("AGE-SECRET-KEY-1" + "Q" * 58, "QQQQ"),
    "aws id": ("AKIA" + "ABCDEFGH12345678", "ABCDEFGH12345678"),
    "aws secret": (f"aws_secret_access_key = {A40}", A40),
    "google key": ("AIza" + "B" * 35, "BBBB"),
    "google oauth": (f"ya29.{A40}", A40),
    "azure account": (f"DefaultEndpointsProtocol=https;AccountKey={A40}==;End", A40),
    "azure signature": (f"https://x.blob/c?sv=1&sig={A40}&se=2", A40),
    "github": (f"ghp_{A40}", A40),
    "github fine": (f"github_pat_{A40}", A40),
    "gitlab": (f"glpat-{A20}", A20),
    "slack": (f"xoxb-{A20}", A20),
    "slack hook": (SLACK_HOOK, "abcdefghijkl"),
    "openai": (f"sk-proj-{A40}", A40),
    "anthropic": (f"sk-ant-api03-{A40}", A40),
    "npm": (f"//registry/:_authToken=npm_{A40}", A40),
    "pypi": (f"pypi-AgEIcHlwaS5vcmc{A40}", A40),
    "stripe": (f"sk_live_{A20}", A20),
    "vault": (f"hvs.{A40}", A40),
    "openshift": (f"sha256~{A40}abc", A40),
    "env": ("MONGO_INITDB_ROOT_PASSWORD=hunter2", "hunter2"),
    "env quoted": ('DB_PASSWORD="hunter 2"', "hunter 2"),
    "yaml": ("  password: hunter2", "hunter2"),
    "yaml upper": ("ADMIN_PWD: admin", ": admin"),
    "json": ('{"password": "hunter2", "user": "x"}', "hunter2"),
    "json in json": (r'{"command": "{\"password\": \"hunter2\"}"}', "hunter2"),
    "json single": ("{'api_key': 'hunter2'}", "hunter2"),
    "prose": ("connect with password: hunter2 please", "hunter2"),
    "passwd": ("passwd: hunter2", "hunter2"),
    "api key": ("x-api-key: abc123", "abc123"),
    "client secret": ("client_secret=abc-def", "abc-def"),
    "token assigned": ("token=abc123def", "abc123def"),
    "token yaml": ("token: abc123def456", "abc123def456"),
    "secret assigned": ("SECRET=Zm9vYmFy", "Zm9vYmFy"),
    "url query": ("GET /x?access_token=abcdef&y=1", "abcdef"),
    "flag": ("login --password hunter2 --user x", "hunter2"),
    "flag equals": ("login --db-password=hunter2", "hunter2"),
    "flag token": ("argocd --auth-token abcdef", "abcdef"),
    "curl user": ("curl -u admin:hunter2 http://x", "hunter2"),
    "mysql": ("mysql -u root -phunter2 -h db", "hunter2"),
    "redis": ("redis-cli -h db -a hunter2", "hunter2"),
    "sshpass": ("sshpass -p hunter2 ssh x", "hunter2"),
    "url": ("mongodb://admin:hunter2@mongo:27017/db", "hunter2"),
    "url without user": ("redis://:hunter2@redis:6379", "hunter2"),
    "env list yaml": ("- name: DB_PASSWORD\n  value: hunter2", "hunter2"),
    "env list json": ('{"name":"DB_PASSWORD","value":"hunter2"}', "hunter2"),
    "env list escaped": (r"{\"name\":\"DB_PASSWORD\",\"value\":\"hunter2\"}", "hunter2"),
    "kubeconfig": (f"client-key-data: {A40}", A40),
    "docker config": ('"auth": "YWRtaW46aHVudGVyMg=="', "YWRtaW46"),
    "secret yaml": ("apiVersion: v1\ndata:\n  user: aHVudGVyMg==\nkind: Secret\n", "aHVudGVyMg=="),
    "secret string data": ("apiVersion: v1\nkind: Secret\nstringData:\n  user: some words\ntype: Opaque", "some words"),
    "secret json": ('{"apiVersion":"v1","data":{"user":"aHVudGVyMg=="},"kind":"Secret"}', "aHVudGVyMg=="),
}


def test_a_secret_is_replaced_by_a_typed_marker() -> None:
    """And masking twice changes nothing: a marker is not taken for a secret."""
    for name, (text, secret) in MASKED.items():
        masked = mask_secrets(text)
        assert secret not in masked, name
        assert "[REDACTED:" in masked, name
        assert mask_secrets(masked) == masked, name


KEPT = {
    "image digest": "nginx@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "uid": "uid: 4f1b2b0b-8f3e-4b1a-9a3e-0c55ad015a3b",
    "pod": "pod/web-78c8d79bb-n2575 1/1 Running",
    "secret name": "secretName: my-secret",
    "volume": "  volumes:\n  - name: creds\n    secret:\n      secretName: db-1",
    "secret reference": "valueFrom:\n  secretKeyRef:\n    name: db\n    key: password",
    "env from secret": "- name: DB_PASSWORD\n  valueFrom:\n    secretKeyRef: {name: db, key: password}",
    "describe": "      DB_PASSWORD:  <set to the key 'password' in secret 'db'>  Optional: false",
    "token word": "the token expired, token: expired, invalid token: unexpected end",
    "token count": "max_tokens=100 prompt_tokens: 4711 token=100",
    "service account": "automountServiceAccountToken: false",
    "service account path": "/var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-x7k2p (ro)",
    "expiry": "tokenExpirationSeconds: 3607",
    "pull secrets": "imagePullSecrets:\n- name: regcred",
    "secret not found": 'MountVolume.SetUp failed for volume "tls" : secret "web-tls" not found',
    "reference": "PASSWORD=$DB_PASSWORD token=${TOKEN} password: {{ .Values.password }}",
    "prose": "invalid password: user not found",
    "null": 'password: null, "token": "", api_key=None',
    "working directory": "PWD=/app\nOLDPWD=/srv/app",
    "basic word": "create a basic NetworkPolicy and basic functionality-test",
    "plain url": "http://frontend.shop.svc:8080/api?x=1 and user@example.org",
    "ids": "docker run -u 1000:1000 image",
    "config map": "apiVersion: v1\ndata:\n  mode: prod\nkind: ConfigMap",
    "service account kind": "kind: ServiceAccount\nsecrets:\n- name: default-token-x7k2p",
    "masked before": "password: ******** token=[REDACTED:token]",
    "base64 log": "payload QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=",
}


def test_ordinary_output_stays() -> None:
    """Evidence is not destroyed: references, ids, digests and words are no secrets."""
    for name, text in KEPT.items():
        assert mask_secrets(text) == text, name


def test_surroundings_of_a_secret_stay() -> None:
    """The judge still sees what was done, to which host, as whom."""
    assert mask_secrets("mongodb://admin:hunter2@mongo/db") == "mongodb://admin:[REDACTED:password]@mongo/db"
    assert mask_secrets('{"password": "x1", "n": 2}') == '{"password": "[REDACTED:password]", "n": 2}'


@given(st.text())
def test_any_text_can_be_masked(text: str) -> None:
    """Lone surrogates, NUL and other alphabets included; what holds no marker is unchanged."""
    masked = mask_secrets(text)

    assert masked == text or "[REDACTED:" in masked


@given(st.text("abcXYZ019_-", min_size=1, max_size=30), st.text("é漢😀\n ", max_size=9))
def test_assigned_password_never_survives(secret: str, noise: str) -> None:
    """Whatever stands around it, also in other alphabets."""
    masked = mask_secrets(f"{noise}\nexport DB_PASSWORD='#{secret}#'\n{noise}")

    assert f"#{secret}#" not in masked


ADVERSARIES = {
    "assignments": "password=a ",
    "urls": "://a:",
    "keys without end": "-----BEGIN PRIVATE KEY-----",
    "commands": "mysql x ",
    "names": "name: secret,",
    "half tokens": "eyJaaaaaaaaa.",
    "open quotes": 'password="',
}


@pytest.mark.parametrize("seed", ADVERSARIES.values(), ids=ADVERSARIES.keys())
def test_no_input_makes_it_slow(seed: str) -> None:
    """Linear: eight times the text takes about eight times as long, where quadratic would take 64 times."""

    def took(size: int) -> float:
        text = seed * (size // len(seed))
        started = time.process_time()
        mask_secrets(text)
        return time.process_time() - started

    took(50_000)

    assert took(400_000) < 30 * max(took(50_000), 0.001)
