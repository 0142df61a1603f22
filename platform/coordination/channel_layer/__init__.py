"""Messages between the sockets and hosts of a site, in one process or over Redis."""
