"""Who sent a request, and what the caller may do."""

from dataclasses import dataclass, field
from typing import Literal

from tarsy_scoring.audit.audit import ChangeOrigin

Scope = Literal["read", "score"]
ALL_SCOPES: frozenset[Scope] = frozenset({"read", "score"})
READ_ONLY: frozenset[Scope] = frozenset({"read"})


@dataclass(frozen=True, slots=True)
class Caller:
    """
    A caller, as `Access` identified it.

    Args:
        name: Forwarded user, token name, or `api-client`.
        scopes: `score` includes `read`.
        address: Client address for anonymous callers; None for named ones.
        origin: Door and address, for the audit record.
        credential: SHA-256 and scope for the token in the request; None: it has none.
    """

    name: str
    scopes: frozenset[Scope]
    address: str | None = None
    origin: ChangeOrigin = field(default=ChangeOrigin(), compare=False)
    credential: tuple[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """Key that is unique per caller: the name, or for an anonymous caller the name and the address."""
        # A name holds no line break, so no named caller can share a key with an anonymous one.
        return self.name if self.address is None else f"{self.name}\n{self.address}"
