"""What a run is set to, and what is recorded of it. Imports edge_fl.core and edge_fl.wire."""
