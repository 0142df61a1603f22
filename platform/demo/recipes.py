"""What the demo can train: a small recipe of each kind, as somebody would fill in the form."""

from typing import NamedTuple


class Small(NamedTuple):
    """A recipe that shows something within minutes, on the text that every Python carries."""

    title: str
    purpose: str
    fields: dict[str, str]
    learning_rate: float
    in_few_steps: float  # the same where there are few: a short run can take larger steps


OPTIMIZER = {
    "optimizer": "lamb",
    "beta1": "0.9",
    "beta2": "0.98",
    "epsilon": "1e-6",
    "weight_decay": "0.01",
    "clip_norm": "1.0",
    "snapshot_every": "20",
    "codec_up": "fp16",
    "codec_down": "fp16",
    "seed": "0",
}
RECIPES: dict[str, Small] = {
    "causal_lm": Small(
        title="A small model of Python's own words",
        purpose="It learns how Python's documentation speaks, from the text that every Python carries.",
        fields={
            **OPTIMIZER,
            "family": "gpt2",
            "layers": "2",
            "width": "96",
            "heads": "4",
            "context": "64",
            "vocab": "4096",
            "target_batch": "64",
            "micro_batch": "4",
            "decay": "cosine",
            "final_ratio": "0.1",
        },
        learning_rate=0.02,
        in_few_steps=0.03,
    ),
    "masked_lm": Small(
        title="A small reader of Python's own words",
        purpose="It learns to find hidden words in Python's documentation, from the text that every Python carries.",
        fields={
            **OPTIMIZER,
            "family": "albert",
            "layers": "2",
            "width": "96",
            "heads": "4",
            "context": "64",
            "embedding": "48",
            "vocab": "2048",
            "tokenizer": "unigram",
            "target_batch": "64",
            "micro_batch": "4",
            "decay": "cosine",
            "final_ratio": "0.1",
        },
        learning_rate=0.01,
        in_few_steps=0.02,
    ),
}
