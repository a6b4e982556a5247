"""The edge of the API: who calls, from where, how often, and how refusals look."""
