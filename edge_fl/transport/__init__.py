"""How bytes travel: a session with a broker, and content in chunks. Imports edge_fl.core, and knows no message."""
