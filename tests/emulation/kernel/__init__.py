"""Linux namespaces, links, addresses and queues, through the programs of iproute2."""
