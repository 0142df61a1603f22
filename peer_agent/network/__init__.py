"""Sockets, and nothing else: links to the site and to relays, the relay's listening side, files over HTTP.

Given handlers, it knows neither the reducer nor the log, decides nothing about rounds, and believes nothing that
protocol's session has not let through. Clocks and chance are arguments.
"""
