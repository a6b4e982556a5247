"""Notifications about scores: a consumer of the topic of scoring events, with a group for each target."""
