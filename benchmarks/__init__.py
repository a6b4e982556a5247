"""Measurements of the service beside a bare client and two stream frameworks: `python -m benchmarks.run`."""
