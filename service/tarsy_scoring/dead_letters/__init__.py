"""Messages that could not be processed, and their replay."""
