"""Ways to ask: two turns, one structured reply, or a rubric."""
