"""The watchdog, in a process whose loop hangs, and in one that was only stopped."""

import signal
import subprocess
import sys
import time

from tests.server.test_serve import PATIENCE_S, ROOT

LOOP = f"""
import asyncio, os, sys, time
sys.path[:0] = [{str(ROOT / "platform")!r}, {str(ROOT)!r}]
from server import watchdog

watchdog.STUCK_S, watchdog.BEAT_S = 1.0, 0.1

async def main():
    watching = asyncio.create_task(watchdog.watch_loop(asyncio.Event()))
    print("up", os.getpid(), flush=True)
    while word := await asyncio.to_thread(sys.stdin.readline):
        if word == "hang\\n":
            time.sleep({PATIENCE_S})
        print("heard", word, flush=True, end="")

asyncio.run(main())
"""


def test_a_process_whose_loop_hangs_starts_again() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", LOOP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            up = f"up {process.pid}\n"
            assert process.stdout.readline() == up
            process.send_signal(signal.SIGSTOP)
            time.sleep(3.0)
            process.send_signal(signal.SIGCONT)
            process.stdin.write("well\n")
            process.stdin.flush()
            assert process.stdout.readline() == "heard well\n", "it was stopped, and its loop does not hang"
            process.stdin.write("hang\n")
            process.stdin.flush()
            assert process.stdout.readline() == up, "a new program under the same number"
            process.stdin.close()
            said = process.stderr.read()
        finally:
            process.kill()
    assert "E466" in said
    assert "in main\n" in said, "the log shows where it hung"
