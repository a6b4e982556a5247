"""Who calls the API, from where, how often, and how refusals look."""
