"""The life of a score as a row: from an incoming request to an ended score."""
