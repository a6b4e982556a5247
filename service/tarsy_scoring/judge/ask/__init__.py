"""Calls a judge's model: one client per provider, and the meaning behind each error."""
