"""
Several processes of one worker: what each may use, their supervisor, and their metrics and health as one.
"""
