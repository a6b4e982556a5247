"""The `service` fixture: an installation whose processes the tests of this folder start."""

from processes import service

__all__ = ["service"]
