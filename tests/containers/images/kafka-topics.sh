#!/bin/bash
exec java ${KAFKA_HEAP_OPTS:-} -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@"
