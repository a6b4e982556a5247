"""Deterministic pass/fail checks on a session, a work directory and command output."""
