"""Identities of a fleet: a certificate authority in a folder, what it gave out, and a broker that knows them.

Needs the extra ``secure`` (cryptography). No run needs this room: it writes files, and brokers and devices read them.
"""
