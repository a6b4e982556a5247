"""What people say about a score, and how far the judge agrees with them."""
