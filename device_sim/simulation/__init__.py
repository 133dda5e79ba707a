"""A fleet in this process: virtual clients, many at once, in virtual time. Imports edge_fl and broker."""
