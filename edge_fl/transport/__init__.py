"""MQTT connections and content transfer, used by both ends. Nothing here knows a model."""
