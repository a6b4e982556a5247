"""Kafka clients, topics and connection security. Only this package imports aiokafka."""
