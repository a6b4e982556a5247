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
        kind: Whether `name` is that of a token; tokens and users may have the same names.
    """

    name: str
    scopes: frozenset[Scope]
    address: str | None = None
    origin: ChangeOrigin = field(default=ChangeOrigin(), compare=False)
    credential: tuple[str, str] | None = field(default=None, compare=False, repr=False)
    kind: Literal["user", "token"] = field(default="user", compare=False)

    @property
    def sender(self) -> str:
        """The name, or `token NAME` for a token that no person stands behind."""
        own_token = f"token {self.name}"
        return own_token if self.origin.through == own_token else self.name

    @property
    def identity(self) -> str:
        """Key that is unique per caller: kind and name, or for an anonymous caller the address."""
        return f"{self.kind}:{self.name}" if self.address is None else f"client:{self.address}"
