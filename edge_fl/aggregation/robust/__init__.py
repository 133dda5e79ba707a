"""Rules that withstand a share of hostile updates, one file a rule; a name is a module. Imports edge_fl.core."""
