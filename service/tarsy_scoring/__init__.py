"""tarsy-scoring: how good was that automated investigation?"""

__version__ = "0.1.0"
