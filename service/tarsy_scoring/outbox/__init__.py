"""Scoring events: stored with the change that causes them, numbered and published in order."""
