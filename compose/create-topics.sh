#!/usr/bin/env bash
# Makes the topics of the service where they are missing; changes none that is there.
#
# Partitions: as many as workers that take requests in at once; judging scales without them. What is an event is not
# compacted: scoring events are there for a week, for consumers that were away; dead letters until somebody has had the
# time to look at them. Of rolling signals the newest of each chain stays: whoever comes reads them from the beginning,
# so they are compacted within the hour.
set -euo pipefail
brokers=$1

create() {
  /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$brokers" --create --if-not-exists --partitions 6 \
    --replication-factor 1 --topic "$1" "${@:2}"
}
create_events() { create "$1" --config "retention.ms=$2"; }
create_compacted() { create "$1" --config cleanup.policy=compact --config segment.ms=3600000; }

day_ms=86400000
create_events session-completed $((7 * day_ms))
create_events rescore-requested $((7 * day_ms))
create_events scoring-events $((7 * day_ms))
create_events scoring-dead-letters $((90 * day_ms))
create_compacted scoring-insights
