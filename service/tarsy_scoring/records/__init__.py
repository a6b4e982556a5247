"""Stored scores: read, listed, analysed, exported, labelled, reviewed and deleted."""
