"""The server side: embedded MQTT broker, coordinator, registry of devices, rounds, run folder, live view."""
