"""Conversations: lists of messages with roles. A model's chat template, or else `plainly`, renders them as text."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Self

import psutil
from msgspec import Struct

from peer_agent.protocol.errors import Problem

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # older names of roles, and their current names
ROLE_NAMES, CONTENT_NAMES = ("role", "from"), ("content", "value", "text")  # names for a message's parts
FORWARDED = ("tool_calls", "tool_call_id", "name")  # what a template may read besides role and content
MOST_SAID = 10_000  # most messages in a conversation
LONGEST_ROLE = 100  # in characters
Message = dict[str, Any]  # role, content, and perhaps some of `FORWARDED`


class NotText(Exception):
    """Raised if a message has parts other than text, such as images."""


def conversation_of(value: Any) -> list[Message] | None:
    """Return the messages in a field's value, or None if the value is not a conversation.

    Missing content counts as empty. The text parts of a message are joined. Raises NotText if a message has other
    parts.
    """
    if not isinstance(value, list) or not 0 < len(value) <= MOST_SAID:
        return None
    said = []
    for each in value:
        role = next((each[name] for name in ROLE_NAMES if each.get(name)), "") if isinstance(each, dict) else ""
        if not isinstance(role, str) or not 0 < len(role) <= LONGEST_ROLE:
            return None
        content = next((each[name] for name in CONTENT_NAMES if each.get(name) is not None), None)
        further = {name: each[name] for name in FORWARDED if each.get(name)}
        said.append({"role": ROLES.get(role, role), "content": _joined(content), **further})
    return said


def _joined(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise NotText
    return "\n".join(texts)


def letters_in(conversation: Sequence[Message]) -> int:
    return sum(len(each["content"]) for each in conversation)


def plainly(conversation: Iterable[Message]) -> str:
    """Render a conversation for a model without a chat template. Each message begins with its role."""
    said = ((each["role"], each["content"] or json.dumps(each.get("tool_calls") or "")) for each in conversation)
    return "\n\n".join(f"{role}: {content}" for role, content in said if content != '""')


# Conversations are rendered as a model reads them, with the model's own chat template.
# A template is an untrusted program. transformers runs it in a sandbox without access to anything else. Here, the
# sandbox also has its own process, which ends if the template takes too much time or memory.

RENDER_S, RENDER_BYTES = 5.0, 1 << 30  # limits per conversation
# Limits in seconds for all conversations together: LONG_S, or MEAN_S per conversation if that is more
LONG_S, MEAN_S = 60.0, 0.05
# Limit on a rendered conversation in bytes, and the most bytes that a character takes
LONGEST, LETTER_BYTES = 16 << 20, 6
LOADED = b"loaded\n"


class ChatTemplate(Struct, frozen=True):
    """A chat template, and the model's special tokens by name. An empty source means that the model has no template."""

    source: str
    special: Mapping[str, str]


class Writer:
    """Renders conversations with a chat template, in a child process that starts with the first conversation."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.refusal = ""  # why the template last refused a conversation
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
        return bool(self.template.source)

    def write(self, conversation: Sequence[Message]) -> str | None:
        """Render a conversation.

        Return None if the template refuses it. Raises Problem E393 if the model has no template, or E394 if the
        template takes too much time or memory.
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
        answer = process.stdout.readline()  # the child process limits the length of its answer
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
        command = [sys.executable, "-m", "peer_agent.site_work.intake.chat"]
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


# The child process


def main(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Render conversations in a `Writer`'s child process. The first line of `questions` contains the template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source, special = json.loads(questions.readline())
    _bound_memory()
    answers.write(LOADED)
    answers.flush()
    while question := questions.readline():
        signal.setitimer(signal.ITIMER_REAL, RENDER_S)  # this timer's signal ends the process
        answers.write(_line(_answer(render_jinja_template, json.loads(question), source, special)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.flush()


def _answer(render: Any, conversation: list[Message], source: str, special: Mapping[str, str]) -> dict[str, str]:
    try:
        (text,), _ = render([conversation], chat_template=source, **special)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a template may raise anything)
        return {"refusal": " ".join(str(error).split())[:200] or type(error).__name__}
    return {"text": text} if LETTER_BYTES * len(text) <= LONGEST else {"refusal": "it is too long"}


def _bound_memory() -> None:
    import resource  # Windows lacks this module; templates are not used there

    most = psutil.Process().memory_info().vms + RENDER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
