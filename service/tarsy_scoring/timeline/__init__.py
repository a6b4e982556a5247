"""What happened in a session: the model, its sources, and the text that a judge reads."""
