"""Identities of a fleet: a certificate authority in a folder, what it gave out, and a broker that knows them.

Needs the extra ``secure`` (cryptography). No run needs this room: it writes files, which brokers and devices read, and
lets devices enrol.
"""
