"""A relay's process, for all runs of a site, or an auxiliary's, for one: shell of `protocol.relay`. No torch."""
