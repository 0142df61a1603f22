"""A round's bytes without any processing: `python -m tests.benchmarks.rig.plain_tcp sink|send PORT MOST`.

All senders send to one sink and receive from it at the same time. The result is the minimum cost of a round.
"""

import os
import socket
import struct
import sys
import threading

HEAD = struct.Struct(">QQ")  # bytes up, bytes down


def exchange(link: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
    sending = threading.Thread(target=link.sendall, args=(outgoing,))
    sending.start()
    receive(link, incoming)
    sending.join()


def receive(link: socket.socket, into: memoryview) -> None:
    """Fill the buffer. Raise EOFError if the other side has closed the link."""
    done = 0
    while done < len(into):
        count = link.recv_into(into[done:])
        if not count:
            raise EOFError
        done += count


def sink(most: int) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        link, _ = listening.accept()
        threading.Thread(target=serve, args=(link, most), daemon=True).start()


def serve(link: socket.socket, most: int) -> None:
    outgoing, incoming = memoryview(os.urandom(most)), memoryview(bytearray(most))
    head = memoryview(bytearray(HEAD.size))
    try:
        while True:
            receive(link, head)
            up, down = HEAD.unpack(head)
            exchange(link, outgoing[:down], incoming[:up])
    except (EOFError, OSError):
        link.close()


def send(port: int, most: int) -> None:
    """Make one exchange for each line of standard input, which gives the byte counts up and down. Print a line after
    each exchange.
    """
    outgoing, incoming = memoryview(os.urandom(most)), memoryview(bytearray(most))
    with socket.create_connection(("127.0.0.1", port)) as link:
        print("linked", flush=True)
        for line in sys.stdin:
            up, down = map(int, line.split())
            link.sendall(HEAD.pack(up, down))
            exchange(link, outgoing[:up], incoming[:down])
            print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        from tests.benchmarks.rig.processes import leave_with_parent

        leave_with_parent()
        sink(int(sys.argv[3]))
    else:
        send(int(sys.argv[2]), int(sys.argv[3]))
