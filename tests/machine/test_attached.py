"""A program that is started with `--attached` leaves with whoever holds the other end of its standard input."""

import subprocess
import sys

PROGRAM = """
import threading
from peer_agent.machine.attached import on_end_of_input
ended = threading.Event()
on_end_of_input(ended.set)
print("ready", flush=True)
print(ended.wait(60), flush=True)
"""


def test_it_leaves_where_there_is_nothing_to_read() -> None:
    """As Windows tells of a pipe that broke: an error in place of an end."""
    command = [sys.executable, "-c", f"import os; os.close(0)\n{PROGRAM}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "ready\nTrue\n"


def test_it_leaves_when_the_pipe_ends_and_not_before() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.stdin.write("words are passed over\n" * 50_000)  # more than a pipe holds: who left would break it
        program.stdin.close()
        assert program.stdout.readline() == "True\n"
