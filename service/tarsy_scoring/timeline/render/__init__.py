"""A session as fenced text that fits the judge's window."""
