"""`edge-fl bench support`: which models each runtime trains."""
