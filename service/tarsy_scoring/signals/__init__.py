"""
Rolling figures per chain: the last hour and the last day, published while scores end.

`consumer` reads scoring events. `figures` computes the figures from the stored scores. `publisher` runs both
in one process at a time and publishes what changed.
"""
