"""Processes that take in, check and add up updates for a coordinator, each with an MQTT session of its own."""
