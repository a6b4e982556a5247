#!/bin/bash
# Each variable KAFKA_A_B becomes the property a.b; then the broker starts on its data, formatted if it is new.
set -euo pipefail
properties=/tmp/server.properties
env | grep '^KAFKA_' | grep -v '^KAFKA_HEAP_OPTS=' | while IFS='=' read -r name value; do
  name=${name#KAFKA_}; name=${name,,}
  printf '%s=%s\n' "${name//_/.}" "$value"
done > "$properties"
grep -q '^log\.dirs=' "$properties" || echo log.dirs=/var/lib/kafka/data >> "$properties"
run() { java -cp '/opt/kafka/libs/*' "$@"; }
run -XX:TieredStopAtLevel=1 kafka.tools.StorageTool format --ignore-formatted \
  --cluster-id=MkU3OEVBNTcwNTJENDM2Qk -c "$properties" >/dev/null
exec java ${KAFKA_HEAP_OPTS:-} -XX:+UseSerialGC -cp '/opt/kafka/libs/*' kafka.Kafka "$properties"
