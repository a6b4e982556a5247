"""The verbs of the studies."""
