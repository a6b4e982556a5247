"""`insights`: publishes rolling figures of every chain."""

from functools import partial

import click

from tarsy_scoring.commands.shared import require_extra, run, settings_of_environment
from tarsy_scoring.commands.standby import run_loop_on_database
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.telemetry.stopping import run_until_signalled


@click.command()
def insights() -> None:
    """
    Publish rolling figures of every chain, until SIGTERM.

    Publishes, per chain, the figures of the last hour and of the last day: scores, their mean, the share
    under the threshold, failures, failure tags and cost. They go to SCORING_TOPIC_SCORING_INSIGHTS within
    about a second after a score ended, one message per chain, which replaces the one before. Reads scoring
    events to learn that scores ended, and the figures from SCORING_DATABASE_URL, where read access is
    enough. Of several processes one works and the others stand by. It keeps no state and may be killed at any
    moment. Serves /metrics, /healthz and /readyz on SCORING_METRICS_PORT. Needs the extra `insights`: pip
    install 'tarsy-scoring[insights]'.
    """
    settings = settings_of_environment()
    settings.require_database()
    settings.require_kafka()
    check_login(settings)
    require_extra("faust", "insights")
    from tarsy_scoring.signals.publisher import RollingSignals

    publish = partial(
        run_loop_on_database,
        settings,
        "insights",
        lambda database, metrics: RollingSignals(settings, database, metrics),
        topics=[settings.topic_scoring_events],
        compacted=[settings.topic_scoring_insights],
    )
    run(run_until_signalled(publish))
