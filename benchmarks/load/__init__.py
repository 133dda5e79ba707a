"""Rounds with many devices on Mosquitto, beside a bare paho program that moves the same bytes (``edge-fl bench load``).

``bench`` leads; each other module with a ``main`` is what one of its processes does.
"""
