"""Asks a model to judge a context and reads the answer."""
