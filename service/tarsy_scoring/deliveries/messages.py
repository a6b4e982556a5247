"""
The requests that destinations get: a signed JSON body, a text for a channel, or scores of Langfuse.

Source of the Slack rules: "Formatting message text", Slack API documentation (escape `&`, `<` and `>`).
Source of the Langfuse fields: `CreateScoreRequest` of its public API; `id` makes a repetition replace the
score.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.deliveries.notices import Notice, link

VERSION = "v1"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")
_CAUSES = {
    "judge": "because the judge changed",
    "agents": "because the agents changed",
    "both": "because both changed",
}


@dataclass(frozen=True, slots=True)
class Message:
    """
    One POST.

    Args:
        path: What follows the address of the destination.
    """

    body: bytes
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


# --- webhooks ------------------------------------------------------------------------------------------


def webhook_message(
    notice: Notice, destination: DestinationSettings, secret: str, at_s: int, public_url: str | None
) -> Message:
    """
    The signed message about a notice.

    Args:
        at_s: Unix time of this try, which the signature covers.
    """
    document: dict[str, Any] = {
        "type": "score_below" if notice.kind == "score" else notice.kind,
        "event_id": notice.event_id,
        "timestamp": _iso(notice),
        "chain_id": notice.chain_id,
        **notice.details,
        "url": link(notice, public_url),
    }
    if notice.kind == "score":
        document["score_below"] = destination.score_below
    body = to_json(document)
    return Message(
        body,
        headers={
            "X-Scoring-Timestamp": str(at_s),
            "X-Scoring-Signature": f"{VERSION}={signature(secret, at_s, body)}",
            "X-Scoring-Delivery": notice.event_id,
        },
    )


def signature(secret: str, at_s: int, body: bytes) -> str:
    """HMAC-SHA256 over the time in decimal digits, a full stop and the body; hexadecimal."""
    return hmac.new(secret.encode(), b"%d.%b" % (at_s, body), hashlib.sha256).hexdigest()


# --- Slack ---------------------------------------------------------------------------------------------


def slack_message(notices: Sequence[Notice], public_url: str | None) -> Message:
    """One message with a line for each notice."""
    lines = [_line(notice, link(notice, public_url)) for notice in notices]
    return Message(to_json({"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}))


def _line(notice: Notice, url: str | None) -> str:
    details, chain = notice.details, _escape(notice.chain_id or "(none)")
    if notice.kind == "score":
        total, outcome = details["total_score"], details["outcome"]
        scored = "No total" if total is None else f"Score {total} of 100"
        ended = f", outcome {_escape(outcome)}" if outcome else ""
        flags = f", flags: {_escape(', '.join(details['flags'] or []))}" if details["flags"] else ""
        return f"{scored}{ended}: session {_linked(details['session_id'], url)} of chain {chain}{flags}"
    if notice.kind == "drift":
        size = details["size_points"]
        by = "" if size is None else f" by {size:+.1f} points"
        why = _CAUSES.get(details["cause"], "for an unknown cause")
        doubt = "" if details["is_clear"] else " (likely, not yet clear)"
        return f"{_linked('Drift', url)} in chain {chain}: totals changed{by}, {why}{doubt}"
    if notice.kind == "budget_spent":
        whose = "all chains" if notice.chain_id is None else f"chain {chain}"
        return (
            f"The daily budget of {whose} ({details['limit_usd']:g} USD) is spent for {details['day']}: "
            f"{_linked('scores', url)} wait for the next UTC day"
        )
    return "A test of tarsy-scoring: notifications reach this channel"


def _linked(text: str, url: str | None) -> str:
    return _escape(text) if url is None else f"<{_escape(url)}|{_escape(text).replace('|', '¦')}>"


def _escape(text: str) -> str:
    """Text that Slack shows as it is, on one line: no link, no mention of people or channels."""
    plain = _CONTROL.sub(" ", text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- Langfuse ------------------------------------------------------------------------------------------

LANGFUSE_PATH = "/api/public/scores"
TOTAL, OUTCOME = "tarsy_scoring.total", "tarsy_scoring.outcome"


def langfuse_messages(
    notice: Notice, destination: DestinationSettings, secret: str, public_url: str | None
) -> list[Message]:
    """The total and the outcome of a score, each as far as it has one. A repetition replaces them."""
    details = notice.details
    about = {name: details[name] for name in ("criteria", "criteria_hash", "judge_fingerprint", "flags")}
    trace_id = notice.labels.get(destination.trace_label) if destination.trace_label else None
    whose = {"traceId": trace_id} if trace_id else {"sessionId": details["session_id"]}
    url = link(notice, public_url)
    common = whose | {
        "metadata": about | {"chain_id": notice.chain_id, "score_id": details["score_id"], "url": url}
    }
    scores: list[dict[str, Any]] = []
    if details["total_score"] is not None:
        total = {
            "id": details["score_id"],
            "name": TOTAL,
            "value": details["total_score"],
            "dataType": "NUMERIC",
        }
        scores.append(total)
    if details["outcome"] is not None:
        outcome = {"id": f"{details['score_id']}-outcome", "name": OUTCOME, "value": details["outcome"]}
        scores.append(outcome | {"dataType": "CATEGORICAL"})
    comment = {} if url is None else {"comment": url}
    login = base64.b64encode(f"{destination.public_key}:{secret}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    return [Message(to_json(score | common | comment), LANGFUSE_PATH, headers) for score in scores]


def _iso(notice: Notice) -> str:
    return notice.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
