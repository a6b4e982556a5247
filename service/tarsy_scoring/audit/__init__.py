"""The audit log: who changed something, when and why."""
