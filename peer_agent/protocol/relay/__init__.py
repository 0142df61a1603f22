"""A peer that reduces, keeps the log, or both: one state machine without sockets, clocks, threads or disks."""
