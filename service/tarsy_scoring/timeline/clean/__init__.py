"""What makes session text safe for a prompt: secrets masked, orders to the judge found, fences defused."""
