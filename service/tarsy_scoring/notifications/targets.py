"""
Notification targets: what each gets for a completed score, and how it is sent.

A message has ids, numbers, configured names and flags. It never holds text from a session or a
judge. Errors name the target and never the address, which may be a secret. The functions that send block:
`loop` calls them in a thread.
"""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import apprise
import requests
from pydantic_core import to_json

from tarsy_scoring import __version__
from tarsy_scoring.config.notifications import AppriseTarget, LangfuseTarget, WebhookTarget
from tarsy_scoring.config.secrets import read_target_secret
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import ScoringCompleted
from tarsy_scoring.timeline.text import without_invisible

TIMEOUT_S = 10.0  # to connect, and for each read
USER_AGENT = f"tarsy-scoring/{__version__}"
LEAST_SECRET = 16  # characters in a signing key
TEST = "A test of tarsy-scoring: notifications reach this target"
# These say nothing about one message: address, secret or access is wrong, so every message waits until it is
# corrected. Other statuses from 400 to 499 refuse one message for good.
OF_EVERY_MESSAGE = {401, 402, 403, 404, 405, 407, 408, 410, 421, 425, 429}
_JUDGE_FIELDS = {"criteria", "criteria_hash", "judge_fingerprint", "flags"}
_FIELDS = {
    "event_id",
    "timestamp",
    "chain_id",
    "session_id",
    "score_id",
    "total_score",
    "outcome",
    "has_reference",
}
_Read = Callable[[], str]
_TRACE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_HTTP = re.compile(r"https?://")
_UNUSUAL = re.compile(r"[^\w .:/=+-]")  # anything that a chat may read as markup, a link or a mention
logging.getLogger("apprise").setLevel(logging.CRITICAL)  # errors quote addresses, which may be secrets


class TargetAway(Exception):
    """The target takes no message right now, or none at this address; send the same message again."""


class MessageRefused(Exception):
    """The target refuses this message for good; others may be taken."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    A configured target, ready to send to; connects to nothing before the first message.

    Args:
        wants: Whether something is sent about this score.
        send: Send a message about the score; None: a test message. Raises `TargetAway` or
            `ConfigurationError`, if the message is to be sent again, and `MessageRefused`, if that would be
            useless.
    """

    wants: Callable[[ScoringCompleted], bool]
    send: Callable[[ScoringCompleted | None], None]


def open_target(name: str, settings: Settings, environ: Mapping[str, str]) -> Target:
    """
    Open a configured target.

    Raises:
        SettingMissing: A variable for the address or secret is not set.
        ConfigurationError: The address or secret cannot be used.
    """
    wanted = settings.config.notifications[name]
    where = f"notifications.{name}"
    match wanted:
        case WebhookTarget():
            url, secret = (read_target_secret(where, v, environ) for v in (wanted.url_env, wanted.secret_env))
            url = _checked(where, "its address does not begin with https://", url, _HTTP.match)
            secret = _checked(where, "its secret is too short", secret, lambda s: len(s) >= LEAST_SECRET)
            send = partial(_send_to_webhook, wanted, settings.public_url, url, secret)
            return Target(partial(_is_low, wanted), send)
        case AppriseTarget():
            url = read_target_secret(where, wanted.url_env, environ)
            url = _checked(
                where, "apprise does not know its address", url, lambda u: apprise.Apprise().add(u)
            )
            send = partial(_send_to_apprise, settings.public_url, url)
            return Target(partial(_is_low, wanted), send)
        case LangfuseTarget():
            secret = read_target_secret(where, wanted.secret_env, environ)
            send = partial(_send_to_langfuse, wanted, settings.public_url, secret)
            return Target(partial(_has_result, wanted), send)


def _checked(where: str, fault: str, read: _Read, is_usable: Callable[[str], object]) -> _Read:
    """
    Return a function that reads a value and checks it.

    Raises:
        ConfigurationError: The value cannot be used: now, or in a later call after its file changed.
    """

    def current() -> str:
        if not is_usable(value := read()):
            raise ConfigurationError(f"{where}: {fault}")
        return value

    current()
    return current


def _send_to_webhook(
    wanted: WebhookTarget,
    public_url: str | None,
    url: Callable[[], str],
    secret: Callable[[], str],
    event: ScoringCompleted | None,
) -> None:
    document: dict[str, Any] = {"type": "test"}
    if event is not None:
        document = {"type": "score_below", "score_below": wanted.score_below, "url": _link(event, public_url)}
        document |= event.model_dump(include=_FIELDS | _JUDGE_FIELDS)
    body, at_s = to_json(document), int(time.time())
    signature = hmac.new(secret().encode(), b"%d.%b" % (at_s, body), hashlib.sha256).hexdigest()
    headers = {
        "X-Scoring-Timestamp": str(at_s),
        "X-Scoring-Signature": f"v1={signature}",
        "X-Scoring-Delivery": "test" if event is None else event.event_id,
    }
    _post(url(), body, headers)


def _send_to_apprise(public_url: str | None, url: Callable[[], str], event: ScoringCompleted | None) -> None:
    service = apprise.Apprise()
    service.add(url())
    text = TEST if event is None else _line(event, _link(event, public_url))
    if not service.notify(body=text, body_format=apprise.NotifyFormat.TEXT):
        raise TargetAway("apprise could not send the message")


def _send_to_langfuse(
    wanted: LangfuseTarget, public_url: str | None, secret: Callable[[], str], event: ScoringCompleted | None
) -> None:
    """Two scores for each of ours; the id makes a repetition replace the score."""
    if event is None:
        raise MessageRefused("it takes scores only, and a test would stay among them")
    url = _link(event, public_url)
    about = event.model_dump(include=_JUDGE_FIELDS | {"chain_id", "score_id"})
    trace_id = _TRACE_ID.fullmatch(event.labels.get(wanted.trace_label or "", ""))
    common: dict[str, Any] = {"traceId": trace_id[0]} if trace_id else {"sessionId": event.session_id}
    common |= {"metadata": about | {"url": url}} | ({} if url is None else {"comment": url})
    address, login = f"{wanted.base_url.rstrip('/')}/api/public/scores", (wanted.public_key, secret())
    for name, score_id, value, kind in (
        ("total", event.score_id, event.total_score, "NUMERIC"),
        ("outcome", f"{event.score_id}-outcome", event.outcome, "CATEGORICAL"),
    ):
        if value is not None:
            score = {"id": score_id, "name": f"tarsy_scoring.{name}", "value": value, "dataType": kind}
            _post(address, to_json(common | score), {}, login)


def _post(url: str, body: bytes, headers: Mapping[str, str], login: tuple[str, str] | None = None) -> None:
    """POST without following redirects and without reading the answer. Raises: as `Target.send`."""
    try:
        with requests.post(
            url,
            data=body,
            headers={"User-Agent": USER_AGENT, "Content-Type": "application/json", **headers},
            auth=login,
            timeout=TIMEOUT_S,
            allow_redirects=False,
            stream=True,
        ) as answer:
            status = answer.status_code
    except (requests.RequestException, ValueError) as error:
        # Without the error's text and cause, which hold the address.
        raise TargetAway(f"it could not be reached, or broke off ({type(error).__name__})") from None
    if 200 <= status < 300:
        return
    if status in OF_EVERY_MESSAGE or not 400 <= status < 500:
        raise TargetAway(f"it answered {status}")
    raise MessageRefused(f"it answered {status}")


def _is_low(wanted: WebhookTarget | AppriseTarget, event: ScoringCompleted) -> bool:
    if not _covers(wanted.chains, event):
        return False
    if wanted.score_below is None:
        return event.outcome == "fail"
    return event.total_score is not None and event.total_score < wanted.score_below


def _has_result(wanted: LangfuseTarget, event: ScoringCompleted) -> bool:
    is_something = event.total_score is not None or event.outcome is not None
    return is_something and _covers(wanted.chains, event)


def _covers(chains: tuple[str, ...], event: ScoringCompleted) -> bool:
    return event.purpose == "production" and (not chains or event.chain_id in chains)


def _line(event: ScoringCompleted, url: str | None) -> str:
    total = "No total" if event.total_score is None else f"Score {event.total_score} of 100"
    outcome = f", outcome {event.outcome}" if event.outcome else ""
    session = _UNUSUAL.sub("?", event.session_id)
    chain = _UNUSUAL.sub("?", without_invisible(event.chain_id or "(none)"))
    flags = f", flags: {', '.join(event.flags)}" if event.flags else ""
    return f"{total}{outcome}: session {session} of chain {chain}{flags}" + (f" {url}" if url else "")


def _link(event: ScoringCompleted, public_url: str | None) -> str | None:
    """The session page; None without `SCORING_PUBLIC_URL`."""
    return public_url and f"{public_url.rstrip('/')}/sessions/{quote(event.session_id, safe='')}"
