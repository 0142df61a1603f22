"""The process of a relay, which serves all runs of a site, or of an auxiliary, which serves one run. Needs no torch."""
