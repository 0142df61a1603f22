"""Byte-level BPE: every text can be encoded, and nothing has to be downloaded to load it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from peer_agent.recipes.text.tokenizer_files import write_json

END_OF_TEXT = "<|endoftext|>"  # parts documents, begins and ends a text
END_OF_TEXT_ID = 0  # special tokens come first; the model takes it from here
BATCH = 256  # documents encoded at a time


def train_tokenizer(documents: Iterable[str], *, vocab: int) -> Tokenizer:
    """A tokenizer of at most `vocab` tokens; a short text gives fewer, 257 at least."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> Iterator[list[int]]:
    """Tokens of each document, with the end of the text after it."""
    for batch in _batches(documents):
        for encoding in tokenizer.encode_batch_fast(batch):
            yield [*encoding.ids, END_OF_TEXT_ID]


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Files from which transformers' AutoTokenizer loads it offline."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    write_json(folder / "special_tokens_map.json", special)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    write_json(folder / "tokenizer_config.json", config)
