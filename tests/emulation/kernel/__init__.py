"""Linux namespaces, links, addresses and queues, set up through the programs of iproute2."""
