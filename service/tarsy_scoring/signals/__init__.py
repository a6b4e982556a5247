"""
Rolling figures per chain: the last hour and the last day, published while scores end.

`consumer` reads scoring events and reports which chains changed. `figures` computes the figures of those
chains from the stored scores. `publisher` runs both in one process at a time and publishes what changed.
"""
