"""Sockets: links to the site and to relays, the listening side of relays, and files over HTTP.
Nothing here decides about rounds. Only messages that a `protocol` session has accepted are trusted.
"""
