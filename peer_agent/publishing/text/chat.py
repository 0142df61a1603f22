"""Conversations as a model reads them: by the chat template that it was brought with.

A template is a program of strangers. transformers runs it in a sandbox, from which nothing is reached; here that is
in a process of its own, so that one which takes too long or too much memory ends by itself.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

import psutil
from msgspec import Struct

from peer_agent.protocol.errors import Problem

RENDER_S, RENDER_BYTES = 5.0, 1 << 30  # of one conversation, at most
LONG_S, MEAN_S = 60.0, 0.05  # of all together, and of each in the mean: one of the two may be more
LONGEST, LETTER_BYTES = 16 << 20, 6  # bytes of a conversation as it is written out, and of a letter at most
LOADED = b"loaded\n"
Message = Mapping[str, str]  # role and content


class ChatTemplate(Struct, frozen=True):
    """A template, and the model's special tokens by their names. Without a source there is none."""

    source: str
    special: Mapping[str, str]


class Writer:
    """Writes conversations out. Use it in a `with` statement; the process begins with the first one."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.refusal = ""  # why the last conversation that was refused was
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds, self._written = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def has_template(self) -> bool:
        """Whether it can write anything."""
        return bool(self.template.source)

    def write(self, conversation: Sequence[Message]) -> str | None:
        """A conversation as a text; None where the template refuses it.

        Raises Problem E393 where the model has no template, E394 where one cannot be used.
        """
        answer = json.loads(self._asked(_line(conversation)))
        self.refusal = answer.get("refusal", self.refusal)
        text: str | None = answer.get("text")
        return text

    def _asked(self, question: bytes) -> bytes:
        process = self._process or self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        began = time.monotonic()
        answer = process.stdout.readline()  # of which that process bounds the length
        self._seconds += time.monotonic() - began
        self._written += 1
        if self._seconds > max(LONG_S, MEAN_S * self._written):
            raise Problem.of("E394", reason=f"a conversation takes more than {1000 * MEAN_S:g} ms in the mean")
        if not answer:
            most = f"{RENDER_S:g} s" if process.wait() == -signal.SIGALRM else f"{RENDER_BYTES >> 20:,} MB"
            raise Problem.of("E394", reason=f"one conversation took more than {most}")
        return answer

    def _begun(self) -> "subprocess.Popen[bytes]":
        if not self.template.source:
            raise Problem.of("E393")
        command = [sys.executable, "-m", "peer_agent.publishing.text.chat"]
        self._process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(_line([self.template.source, dict(self.template.special)]))
            process.stdin.flush()
        if process.stdout.readline(len(LOADED)) != LOADED:
            raise Problem.of("E394", reason="the process that would run it does not start")
        return process


def _line(said: Any) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode(errors="replace") + b"\n"


# The process


def main(questions: IO[bytes], answers: IO[bytes]) -> None:
    """A line with a template, then one for each conversation; for each a line with its text, or why there is none."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source, special = json.loads(questions.readline())
    _bound_memory()
    answers.write(LOADED)
    answers.flush()
    while question := questions.readline():
        signal.setitimer(signal.ITIMER_REAL, RENDER_S)  # which ends this process
        answers.write(_line(_answer(render_jinja_template, json.loads(question), source, special)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.flush()


def _answer(render: Any, conversation: list[Message], source: str, special: Mapping[str, str]) -> dict[str, str]:
    try:
        (text,), _ = render([conversation], chat_template=source, **special)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (whatever a template does)
        return {"refusal": " ".join(str(error).split())[:200] or type(error).__name__}
    return {"text": text} if LETTER_BYTES * len(text) <= LONGEST else {"refusal": "it is too long"}


def _bound_memory() -> None:
    import resource  # not on Windows, where no template is used

    most = psutil.Process().memory_info().vms + RENDER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
