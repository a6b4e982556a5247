"""Scoring events pushed to WebSocket clients, with catch-up."""
