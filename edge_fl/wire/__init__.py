"""What crosses the network: the frame (weights and updates) and the control messages. See docs/protocol.md."""
