#!/usr/bin/env bash
# Lets each program do on Kafka what it does, and nothing else. For brokers with an authorizer and
# `allow.everyone.if.no.acl.found=false`. Safe to repeat; docs/operations.md has the same as a table.
#
#   kafka-acls.sh BROKERS [OPTION of kafka-acls.sh]...      e.g. kafka-acls.sh kafka:9093 --command-config admin.properties
#
# Names of users, topics and the group that differ from these come from the environment.
set -euo pipefail
brokers=$1
shift
options=("$@")

worker=${WORKER_USER:-scoring-worker}
api=${API_USER:-scoring-api}
bridge=${BRIDGE_USER:-scoring-bridge}
insights=${INSIGHTS_USER:-scoring-insights}
notify=${NOTIFY_USER:-scoring-notify}
operator=${OPERATOR_USER:-scoring-operator}
completed=${SCORING_TOPIC_SESSION_COMPLETED:-session-completed}
requested=${SCORING_TOPIC_RESCORE_REQUESTED:-rescore-requested}
events=${SCORING_TOPIC_SCORING_EVENTS:-scoring-events}
letters=${SCORING_TOPIC_DEAD_LETTERS:-scoring-dead-letters}
figures=${SCORING_TOPIC_SCORING_INSIGHTS:-scoring-insights}
group=${SCORING_KAFKA_GROUP:-tarsy-scoring}

# Read and Write include Describe. Idempotent producers need no right on the cluster (Kafka 3 and newer).
allow() {
  /opt/kafka/bin/kafka-acls.sh --bootstrap-server "$brokers" "${options[@]}" --add --allow-principal "User:$1" \
    --operation "$2" "${@:3}"
}

allow "$worker" Read --topic "$completed" --topic "$requested" --group "$group"
allow "$worker" Write --topic "$events" --topic "$letters" --topic "$figures"
allow "$api" Read --topic "$events"
allow "$bridge" Write --topic "$completed"
allow "$insights" Read --topic "$events" --group "$group-insights"
allow "$insights" Write --topic "$figures"
allow "$notify" Read --topic "$events"
allow "$notify" Read --group "$group-notify-" --resource-pattern-type prefixed
allow "$operator" Read --topic "$letters"
allow "$operator" Write --topic "$completed" --topic "$requested"
