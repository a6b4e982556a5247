"""Detects whether the judge or the agents changed."""
