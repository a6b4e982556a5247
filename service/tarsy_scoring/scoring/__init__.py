"""One attempt at a score, from the claimed row to the stored result."""
