"""Deterministic pass/fail checks: what they need, how they decide, how commands run."""
