"""Deterministic pass/fail checks of a session, a work directory and the output of commands."""
