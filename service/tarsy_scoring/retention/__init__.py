"""Removes what need not be kept: sessions that are erased, persons, and rows beyond their retention."""
