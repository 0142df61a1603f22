"""A simulator that runs the real coordinator with virtual peers, a virtual clock and faults for thousands of rounds. It
computes no gradients and opens no sockets. Virtual relays average nothing, but send a real relay's messages. Equal
seeds give identical runs, event by event.
"""
