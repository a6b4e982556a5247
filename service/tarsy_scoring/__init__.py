"""tarsy-scoring: how good was that automated investigation?"""

__version__ = "1.0.0"
