"""Virtual peers on a virtual clock around the real coordinator: thousands of rounds with deaths, sleeps and restarts.

Not responsible for arithmetic or sockets: a virtual relay averages nothing and says what a real one would say. The
same seed gives the same run, event by event.
"""
