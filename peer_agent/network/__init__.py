"""Sockets: links to the site and to relays, the relay's listening side, files over HTTP.

Callers pass handlers: this room knows neither the reducer nor the log and decides nothing about rounds. It trusts only
what protocol's session has accepted. Clocks and chance are arguments.
"""
