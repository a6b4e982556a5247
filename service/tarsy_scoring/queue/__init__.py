"""The life of a score as a row, from the message that asks for it to its published event."""
