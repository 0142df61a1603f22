"""Messages between a site's sockets and hosts: within a process, over Redis or PostgreSQL. Also a cache on Redis."""
