"""A trainer's process: the shell of `protocol.trainer`, with its replica, files and rounds."""
