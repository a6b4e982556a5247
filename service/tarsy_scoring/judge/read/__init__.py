"""Reads a judge's replies: totals, JSON, citations and failure tags."""
