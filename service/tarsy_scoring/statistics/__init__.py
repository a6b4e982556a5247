"""Statistics of scores, labels and judges. Pure functions over numbers."""
