"""Evaluation without a model."""
