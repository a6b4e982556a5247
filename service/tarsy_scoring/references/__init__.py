"""Causes of incidents that became known after the investigation."""
