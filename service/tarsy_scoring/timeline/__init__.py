"""A session as text that fits the judge's window, with secrets masked and hostile text fenced."""
