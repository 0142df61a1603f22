"""Virtual peers on a virtual clock around the real coordinator: thousands of rounds with kills, sleeps and restarts.

There is no arithmetic and no socket: a virtual relay averages nothing and sends the messages of a real one. Equal seeds
give equal runs, event by event.
"""
