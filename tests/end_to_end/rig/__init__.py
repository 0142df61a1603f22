"""The parts of the journeys: a site with its agents, a browser, and the faults on the way."""
