"""Messages between the sockets and the hosts of a site, in one process or over Redis."""
