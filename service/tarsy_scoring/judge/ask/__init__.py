"""Calls of a judge's model: one client per provider, and what its errors mean."""
