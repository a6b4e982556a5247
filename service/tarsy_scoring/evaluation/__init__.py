"""Measures and verdicts that need no model: interaction metrics, diagnosis, outcome."""
