"""What is asked of Linux: namespaces, links, addresses and queues, by the programs of iproute2."""
