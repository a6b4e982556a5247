"""The studies' verbs."""
