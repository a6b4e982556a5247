"""Metrics, logging, tracing and health probes."""
