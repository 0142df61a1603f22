"""What repositories on the Hub are called."""

import os
import re
from typing import Literal

from peer_agent.protocol.errors import Problem

Kind = Literal["dataset", "model", "tokenizer"]  # what is looked for; a tokenizer is a part of a model

HUB = "https://huggingface.co"
PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
NAME = re.compile(f"{PART}/{PART}")


def check_name(repository: str) -> None:
    """Raises Problem E348 where this is not NAMESPACE/NAME by the Hub's rules."""
    is_name = NAME.fullmatch(repository) and not re.search(r"--|\.\.|\.git\Z", repository)
    if not is_name:
        raise Problem.of("E348", repository=repository)


def hub_endpoint() -> str:
    """Where the Hub is for whoever runs the agent: HF_ENDPOINT, as for the Hub's own programs."""
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
