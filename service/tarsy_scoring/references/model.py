"""
References: what people found out about an incident after the session, for the judge to judge against.

The same text with the same link is one reference, however often it is sent.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid5

from tarsy_scoring.events import GivenReference
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of

# Never change: stored references would be stored again.
_NAMESPACE = UUID("5f0f3c0e-6a5c-5a83-9d53-0f3a3f1b7c42")

REVIEWED_BY = "review in TARSy by "


@dataclass(frozen=True, slots=True)
class Reference:
    """
    A reference as it is stored.

    Args:
        reference_id: Made of the session, the text and the link.
        text, source_url: Without secrets.
        provided_by: Who found it out, as the sender says.
        sent_by: The sender: a person's name, `event: NAME`, `token NAME`, or `REVIEWED_BY` and a name; None:
            as `provided_by`.
    """

    reference_id: UUID
    text: str
    source_url: str | None
    provided_by: str
    provided_at: datetime
    sent_by: str | None = None


def reference_of(
    given: GivenReference,
    session_id: str,
    extra_patterns: Mapping[str, str],
    *,
    by: str,
    sent_by: str | None = None,
    at: datetime | None = None,
) -> Reference:
    """
    The reference that a request gives, with secrets masked. Blocks for a quarter of a second at the first
    call.

    Args:
        extra_patterns: The shapes of the operator's own secrets.
        by: Name of the sender, for a reference without `provided_by`.
        sent_by: See `Reference`; None: `by`.
        at: Time of arrival, for a reference without `provided_at`; None: now.
    """
    masking = masking_of(extra_patterns)
    text = mask_secrets(given.text, masking)
    source_url = given.source_url and mask_secrets(given.source_url, masking)
    provided_at = given.provided_at or at or datetime.now(UTC)
    content = f"{text}\x1f{source_url or ''}".encode("utf-8", "surrogatepass")
    reference_id = uuid5(_NAMESPACE, f"{session_id}\x1f{hashlib.sha256(content).hexdigest()}")
    return Reference(reference_id, text, source_url, given.provided_by or by, provided_at, sent_by or by)
