"""The installation that every test here starts processes of."""

from processes import service

__all__ = ["service"]
