"""Notifications about scores: consumes scoring events, with a group for each target."""
