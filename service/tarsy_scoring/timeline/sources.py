"""
Opens the timeline source that the settings name.
"""

from pkgutil import resolve_name

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.config.timeline_sources import SOURCES, source_names
from tarsy_scoring.errors import SettingMissing
from tarsy_scoring.timeline.model import TimelineSource


def open_timeline_source(settings: Settings) -> TimelineSource:
    """
    Make the source of `SCORING_TIMELINE_SOURCE`; it connects at the first use.

    Raises:
        SettingMissing: No source is configured, or it lacks a setting.
        ConfigurationError: The settings can never work.
    """
    if settings.timeline_source is None:
        raise SettingMissing(f"SCORING_TIMELINE_SOURCE is not set: say {source_names()}")
    registered = SOURCES[settings.timeline_source]
    for name, wanted in registered.requires.items():
        if getattr(settings, name) is None:
            raise SettingMissing(f"{variable_of(name)} is not set: {wanted}")
    source: TimelineSource = resolve_name(registered.factory)(settings)
    return source
