"""The state machine of a peer that reduces, keeps the log, or both. It uses no sockets, clocks, threads or disks."""
