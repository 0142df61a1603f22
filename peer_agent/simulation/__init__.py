"""A simulator: virtual peers on a virtual clock with the real coordinator, for thousands of rounds with faults.
It computes no gradients and opens no sockets. A virtual relay averages nothing, but sends a real relay's messages.
Equal seeds give equal runs, event by event.
"""
