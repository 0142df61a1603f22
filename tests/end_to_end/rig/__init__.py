"""What the journeys are made of: a site with its agents, a browser, and what goes wrong on the way."""
