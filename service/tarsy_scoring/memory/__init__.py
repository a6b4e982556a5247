"""Lessons from scored sessions, written where TARSy keeps the memory that its agents read."""
