"""Messages between a site's sockets and hosts: within a process, or over Redis or PostgreSQL. Also a cache on Redis."""
