"""Messages between a site's sockets and hosts: within a process, over Redis or over PostgreSQL. Also Redis's cache."""
