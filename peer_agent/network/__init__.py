"""Sockets: links to the site and to relays, the listening side of relays, and files over HTTP.

Callers pass handlers. So nothing here depends on the reducer or the log, and nothing here decides about rounds. Only
messages that a `protocol` session has accepted are trusted. Clocks and random numbers are arguments.
"""
