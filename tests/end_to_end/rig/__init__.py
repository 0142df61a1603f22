"""The building blocks of the end-to-end tests: a site with its agents, a browser, and faults."""
