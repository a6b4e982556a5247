"""
Where a score belongs in somebody's trace: read what came, and tell spans of what becomes of it, or tell nothing.

What is told goes to `Tracing`. This one is for traces that are off: it does nothing and imports nothing; `spans.Spans`
is the other. A trace that came in is stored and passed on in either case.
"""

import importlib.util
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tarsy_scoring.config.settings import ProviderSettings, Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.verdict import Turn

About = Mapping[str, str | int | float | None]
TRACEPARENT = "traceparent"
# The header itself, or the extension of CloudEvents in binary mode.
_MESSAGE_HEADERS = (TRACEPARENT, "ce_traceparent")
_FORM = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<ids>[0-9a-f]{32}-[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?")
_NO_ID = re.compile(r"0{32}-.*|.*-0{16}")
_KNOWN_FLAGS = 0b11  # sampled, and random trace id
_INSTALL = "install it: pip install 'tarsy-scoring[tracing]'"
# A header in a variable, as the SDK reads it; what does not fit it would leave out, and quote in a warning.
_HEADER_NAME = r"[!#-'*+\-.0-9A-Z^-z|~]+"
_HEADER = re.compile(rf"(?P<name>{_HEADER_NAME})[ \t]*=[ \t]*(?P<value>[ !#-+\--:<-\[\]-~]*)")
_NO_HEADER_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


# --- what came -----------------------------------------------------------------------------------------


def read_traceparent(values: Sequence[str]) -> str | None:
    """
    What headers named `traceparent` say, as version 00 spells it, 55 characters; None where that is no trace, or two.

    Source: W3C Trace Context, sections 3.2 and 4.3: of a later version only what 00 knows is taken.
    """
    found = _FORM.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or found["version"] == "ff" or _NO_ID.fullmatch(found["ids"]):
        return None
    if found["version"] == "00" and found["more"] is not None:
        return None
    return f"00-{found['ids']}-{int(found['flags'], 16) & _KNOWN_FLAGS:02x}"


def traceparent_of(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """The trace that a Kafka record was sent in; None where it says none."""
    for name in _MESSAGE_HEADERS:
        if values := [(value or b"").decode("ascii", "replace") for header, value in headers if header == name]:
            return read_traceparent(values)
    return None


# --- what is told --------------------------------------------------------------------------------------


class AttemptTrace:
    """
    The place of an attempt in a trace.

    Args:
        traceparent: For what happens within it, and for its events; None: there is no trace.
        names: What lines of the log about it say of its trace, also those that are written elsewhere.
    """

    def __init__(self, traceparent: str | None, names: Mapping[str, str] | None = None) -> None:
        self.traceparent = traceparent
        self.names = names or {}

    def current(self) -> AbstractContextManager[None]:
        """What is told and logged within belongs to the attempt. Leaving it ends nothing, however it is left."""
        return _NOTHING

    def end(self, outcome: str, error_kind: str | None) -> None:
        """The attempt ended so, in the words of its log line. Once, and from anywhere."""


class Tracing:
    """
    Takes what is to be told, and tells nobody. Everything given to `with` lets errors through.
    """

    def attempt(self, parent: str | None, source: str, topic: str | None, about: About) -> AttemptTrace:
        """
        An attempt begins; it lasts until its `end`.

        Args:
            parent: The trace of whoever asked for the score, which it belongs to; None: it begins one.
            source: What kind of request asked for it.
            topic: Where that came from; None: not from Kafka.
            about: What tells this attempt from others.
        """
        return AttemptTrace(parent)

    def step(self, phase: str) -> AbstractContextManager[None]:
        """A phase within an attempt."""
        return _NOTHING

    def chat(
        self, provider: str, settings: ProviderSettings, kind: str
    ) -> AbstractContextManager[Callable[[Turn], None]]:
        """A question to a judge, with its waits and repeated calls; gives what is to be called with the answer."""
        return _NOBODY_LISTENS

    def evaluated(self, criteria: str, total_score: int | None, outcome: str | None) -> None:
        """The score of the attempt is stored."""

    async def close(self) -> None:
        """
        Send what is left, for a few seconds at most. Nothing may be told afterwards.

        An attempt that nobody ended, as one that could not be given back, ends here without an outcome.
        """


def _not_heard(_: Turn) -> None:
    pass


_NOTHING = nullcontext()
_NOBODY_LISTENS = nullcontext(_not_heard)
OFF = Tracing()


# --- whether it is wanted ------------------------------------------------------------------------------


def wants_traces(settings: Settings, environ: Mapping[str, str]) -> bool:
    """
    Whether traces are to be exported: `SCORING_TRACES`, else where OpenTelemetry's own variables name an endpoint.

    Raises:
        ConfigurationError: They are, and cannot be: something is not installed, or not to be had here.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = settings.traces if settings.traces is not None else bool(endpoint)
    exporter = (environ.get("OTEL_TRACES_EXPORTER") or "otlp").strip().lower()
    is_disabled = (environ.get("OTEL_SDK_DISABLED") or "").strip().lower() == "true"
    if not wanted or is_disabled or exporter == "none":
        return False
    if exporter != "otlp":
        raise ConfigurationError(
            "OTEL_TRACES_EXPORTER: traces are exported by otlp or none here; SCORING_TRACES=false turns them off"
        )
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol and protocol.strip() != "http/protobuf":
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_PROTOCOL: traces are sent as http/protobuf; name that port of the collector "
            "(usually 4318), or turn them off: SCORING_TRACES=false"
        )
    if not all(_is_installed(module) for module in _NEEDED):
        raise ConfigurationError(
            f"traces are asked for, and OpenTelemetry's SDK is not installed; {_INSTALL}, or SCORING_TRACES=false"
        )
    _check_endpoint(*_given(environ, "ENDPOINT"))
    _check_headers(*_given(environ, "HEADERS"))
    _check_authorities(*_given(environ, "CERTIFICATE"))
    _check_client(*_given(environ, "CLIENT_CERTIFICATE"), *_given(environ, "CLIENT_KEY"))
    return True


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


# What these variables hold may be a key or hold one, by mistake too: no message quotes it.


def _given(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """The variable that decides, which is that of traces where it says something, and its value."""
    of_traces, of_all = f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"
    variable = of_traces if environ.get(of_traces) else of_all
    return variable, environ.get(variable) or ""


def _check_endpoint(variable: str, url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:  # of which UnicodeError is one
        host, port = "", None
    if not host or port == 0 or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise ConfigurationError(f"{variable}: expected http://host:port or https://host:port of a collector")


def _check_headers(variable: str, text: str) -> None:
    for n, header in enumerate((h for h in text.split(",") if h.strip()), start=1):
        found = _HEADER.fullmatch(header.strip())
        if found is None:
            raise ConfigurationError(
                f"{variable}: header {n} is not name=value; write name=value,name=value and special characters of "
                "values as %XX, such as %2C for a comma"
            )
        if not re.fullmatch(_HEADER_NAME, unquote(found["name"])) or _NO_HEADER_VALUE.search(unquote(found["value"])):
            raise ConfigurationError(f"{variable}: header {n} holds, behind a %XX, what no header can")


def _check_authorities(variable: str, path: str) -> None:
    if not path or Path(path).is_dir():  # a folder is looked into as needed
        return
    _check_file(variable, path)
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError):  # of which ssl.SSLError is one
        raise ConfigurationError(f"{variable}: the file holds no certificates in PEM format") from None


def _check_client(variable: str, path: str, key_variable: str, key_path: str) -> None:
    if not path:
        return  # and then a key is not looked at
    _check_file(variable, path)
    if key_path:
        _check_file(key_variable, key_path)
    try:
        ssl.create_default_context().load_cert_chain(path, key_path or None, lambda: "")
    except (OSError, ValueError):
        raise ConfigurationError(
            f"{variable}: it cannot be used with its key ({key_variable}, else in the same file); give a certificate "
            "and its own key, in PEM format and without a password"
        ) from None


def _check_file(variable: str, path: str) -> None:
    try:
        Path(path).open("rb").close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "that is no name of a file"
        raise ConfigurationError(f"{variable}: cannot read the file: {why}") from None
