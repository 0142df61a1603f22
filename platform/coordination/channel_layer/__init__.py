"""Messages between a site's sockets and hosts, within one process or over Redis."""
