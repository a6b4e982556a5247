"""Notifications and scores for other systems: webhooks, Slack and Langfuse."""
