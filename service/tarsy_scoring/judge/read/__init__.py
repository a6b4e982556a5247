"""Reads the replies of a judge: totals, JSON, citations and failure tags."""
