"""Statistics of scores, labels and judges: functions over numbers, without I/O. scipy is imported on first
use.
"""
