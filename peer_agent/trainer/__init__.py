"""A trainer's process, which runs the state machine in `protocol.trainer` with a replica, files and rounds."""
