"""A session as fenced text that fits the window of the judge."""
