"""Networking: links to the site and to relays, the relays' listener, and file transfers over HTTP.

This package makes no decisions about rounds. It trusts only messages that a `protocol` session has accepted.
"""
