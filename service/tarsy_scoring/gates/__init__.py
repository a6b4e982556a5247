"""Deterministic pass/fail checks of a session, its work directory and the output of commands."""
