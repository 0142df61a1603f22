"""An uploaded model: a transformers folder, or a zip of one. Reads are limited in size, and none of its code is run."""

import hashlib
import json
import shutil
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import torch
from huggingface_hub.errors import StrictDataclassError
from msgspec import ValidationError, convert
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.protocol.recipe import ModelFile
from peer_agent.publishing.tokenizer import pieces_of, text_of
from peer_agent.recipes.finetune_lora import NAMES, Base
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.finetune_lora.training import CONFIG, empty_model
from peer_agent.recipes.training import write_json
from peer_agent.site_work.fetching import (
    CONFIG_FILE,
    INDEX,
    PICKLED,
    SPECIAL,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
)
from peer_agent.site_work.intake.chat import ChatTemplate, Writer
from peer_agent.site_work.prepare_text import PreparedText, cut, open_all, sources_of

MOST_JSON = 4 << 20  # limit on a JSON file, in bytes
# Limit on the compression ratio. Parameters hardly shrink, so the upload's size limits the unpacked size.
MOST_SHRUNK = 4
# zipfile's errors. RuntimeError: a password or an unknown compression method.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class ModelFiles(ABC):
    """The files in the same folder as config.json, by name."""

    names: Collection[str]

    @abstractmethod
    def size_of(self, name: str) -> int:
        """Return a file's size in bytes."""

    @abstractmethod
    def bytes_of(self, name: str) -> bytes:
        """Return a file's content."""

    @abstractmethod
    def paths(self, names: list[str], work: Path) -> Iterator[Path]:
        """Yield each file's path, valid until the next is yielded. Raises Problem E388 if a file is missing."""

    def read(self, name: str, most: int = MOST_JSON) -> bytes | None:
        """Return a small file's content, or None if it is missing.

        Raises Problem E388 if it is larger than `most` bytes.
        """
        if name not in self.names:
            return None
        if self.size_of(name) > most:
            raise Problem.of("E388", reason=f"{name} is larger than {most >> 20} MB")
        return self.bytes_of(name)

    def values(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file, or {} if there is no file.

        Raises Problem E388 if the file contains no object.
        """
        try:
            found = json.loads(self.read(name) or b"{}")
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise Problem.of("E388", reason=f"{name} is not JSON") from error
        if not isinstance(found, dict):
            raise Problem.of("E388", reason=f"{name} is not an object")
        return found

    def held(self, name: str) -> str:
        """Return a required file's name without its folder. Raises Problem E388 if the model lacks this file."""
        last = PurePosixPath(name).name
        if last not in self.names:
            raise Problem.of("E388", reason=f"{name[:100]} is missing")
        return last


class _Folder(ModelFiles):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names = {path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        if CONFIG_FILE not in self.names:
            raise Problem.of("E388", reason=f"there is no {CONFIG_FILE} in it")

    def size_of(self, name: str) -> int:
        return (self._folder / name).stat().st_size

    def bytes_of(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def paths(self, names: list[str], work: Path) -> Iterator[Path]:  # noqa: ARG002 (there is nothing to unpack)
        for name in names:
            yield self._folder / self.held(name)


class _Zipped(ModelFiles):
    """The files in an archive that are in the same folder as config.json."""

    def __init__(self, packed: zipfile.ZipFile) -> None:
        self._packed = packed
        known = {PurePosixPath(entry.filename): entry for entry in packed.infolist() if not entry.is_dir()}
        places = sorted((len(path.parts), path.parent) for path in known if path.name == CONFIG_FILE)
        if not places:
            raise Problem.of("E388", reason=f"there is no {CONFIG_FILE} in it")
        self._entries = {path.name: entry for path, entry in known.items() if path.parent == places[0][1]}
        self.names = self._entries.keys()

    def size_of(self, name: str) -> int:
        return self._entries[name].file_size

    def bytes_of(self, name: str) -> bytes:
        return self._packed.read(self._entries[name])

    def paths(self, names: list[str], work: Path) -> Iterator[Path]:
        for number, name in enumerate(names):
            entry = self._entries[self.held(name)]
            if entry.file_size > MOST_SHRUNK * entry.compress_size:
                raise Problem.of("E388", reason=f"{entry.filename[-100:]} is packed as parameters cannot be")
            path = work / f"part-{number}"
            with self._packed.open(entry) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            yield path
            path.unlink()


@contextmanager
def open_model(path: Path) -> Iterator[ModelFiles]:
    """Open a model's folder or zip. Raises Problem E388 if it is unreadable or contains no model."""
    try:
        if path.is_dir():
            yield _Folder(path)
        else:
            with zipfile.ZipFile(path) as packed:
                yield _Zipped(packed)
    except UNREADABLE as error:
        raise Problem.of("E388", reason=error) from error


MOST_TOKENIZER = 256 << 20  # limit on the tokenizer's file, in bytes
MOST_LAYERS = 512
# Errors that transformers raises for an invalid configuration
WRONG = (KeyError, TypeError, ValueError, RuntimeError, AttributeError, ZeroDivisionError, StrictDataclassError)
UNUSED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
# Settings that affect tokenization. None of them names code, so transformers loads the tokenizer without running any.
KEPT = ("bos_token", "eos_token", "unk_token", "pad_token", "add_bos_token", "add_eos_token")


class Read(NamedTuple):
    """A base model as read from its files, with its end-of-text token and its chat template."""

    base: Base
    end: int
    template: ChatTemplate


def read_base(model: Path, out: Path) -> Read:
    """Read a model from a folder or a zip.

    Write its parameters to `out`/model and its tokenizer to `out`/tokenizer. Raises Problem E388 if this is no readable
    model, or E389 if its parameters are pickled. Raises E390 if its kind is not supported or needs custom code, or E391
    if its parameters or tokenizer do not match its configuration.
    """
    with open_model(model) as files:
        config = _config_of(files)
        base = _base_of(config)
        end, template = _write_tokenizer(files, out / "tokenizer", base, config)
        (out / "model").mkdir(parents=True)
        file = _write_parameters(files, config, out / "model")
    return Read(replace(base, file=file), end, template)


def _config_of(files: ModelFiles) -> dict[str, Any]:
    """Return the model's configuration, for transformers.

    Raises Problem E390 if the model is of an unsupported kind, needs custom code, or is quantized.
    """
    config = files.values(CONFIG_FILE)
    kind = config.get("model_type")
    if "auto_map" in config:
        raise Problem.of("E390", reason="it needs custom code", known=", ".join(NAMES))
    if not isinstance(kind, str) or kind not in NAMES:
        raise Problem.of("E390", reason=f"it is of the kind {str(kind)[:40]!r}", known=", ".join(NAMES))
    if config.get("quantization_config"):
        raise Problem.of("E390", reason="its parameters are quantized", known=", ".join(NAMES))
    return {name: value for name, value in config.items() if name not in UNUSED}


def _base_of(config: Mapping[str, Any]) -> Base:
    kind = config["model_type"]
    try:
        read: Any = CONFIG_MAPPING[kind](**{name: value for name, value in config.items() if name != "model_type"})
        heads = read.num_attention_heads
        values = {
            "family": kind,
            "layers": read.num_hidden_layers,
            "width": read.hidden_size,
            "heads": heads,
            "kv_heads": getattr(read, "num_key_value_heads", None) or heads,
            "head": getattr(read, "head_dim", None) or read.hidden_size // heads,
            "inside": (getattr(read, "n_inner", None) or 4 * read.hidden_size)
            if kind == "gpt2"
            else read.intermediate_size,
            "context": read.max_position_embeddings,
            "vocab": read.vocab_size,
            "is_tied": bool(read.tie_word_embeddings),
        }
        base = convert(values, Base)
    except (ValidationError, *WRONG) as error:
        raise Problem.of("E391", reason=error) from error
    if base.layers > MOST_LAYERS:
        raise Problem.of("E391", reason=f"{base.layers:,} layers are more than {MOST_LAYERS}")
    return base


def _write_parameters(files: ModelFiles, config: Mapping[str, Any], folder: Path) -> ModelFile:
    """Write all parameters to one file, with the configuration in its metadata.

    Raises Problem E388 if a file is missing or unreadable, or E389 if the parameters are pickled. Raises E391 if they
    do not match the configuration.
    """
    shapes = _shapes_of(config)
    tensors: dict[str, torch.Tensor] = {}
    for path in files.paths(_weights_in(files), folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (`file` is not a dict)
                    if name in shapes.both and tuple(file.get_slice(name).get_shape()) == shapes.both[name]:
                        tensors[name] = file.get_tensor(name)
        except SafetensorError as error:
            raise Problem.of("E388", reason=error) from error
    if missing := sorted(shapes.needed - tensors.keys()):
        raise Problem.of(
            "E391", reason=f"{len(missing)} of its parameters are missing or of another shape, as {missing[0]}"
        )
    if not all(part.is_floating_point() for part in tensors.values()):
        raise Problem.of("E391", reason="some of its parameters are not floats")
    whole = folder / "whole"
    save_file({name: part.contiguous() for name, part in tensors.items()}, whole, {CONFIG: json.dumps(dict(config))})
    with whole.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return ModelFile(digest, whole.replace(folder / f"{digest}.safetensors").stat().st_size)


class _Shapes(NamedTuple):
    """The shapes of a model's tensors.

    `both`: all tensors, by name. `needed`: the names of the tensors that must be in the files. A tensor that shares
    another one's values (is tied to it) is not among them.
    """

    both: dict[str, tuple[int, ...]]
    needed: set[str]


def _shapes_of(config: Mapping[str, Any]) -> _Shapes:
    """Return the shapes of the tensors in a model with this configuration.

    Raises Problem E391 if transformers rejects the configuration.
    """
    try:
        with torch.device("meta"):
            model = empty_model(config)
    except WRONG as error:
        raise Problem.of("E391", reason=error) from error
    shapes = {name: tuple(part.shape) for name, part in model.state_dict().items()}
    return _Shapes(shapes, {name for name, _ in model.named_parameters()})


def _weights_in(files: ModelFiles) -> list[str]:
    """Return the names of the files that contain parameters.

    Raises Problem E389 if the parameters are pickled, or E388 if there are none.
    """
    if WEIGHTS in files.names:
        return [WEIGHTS]
    parts = files.values(INDEX).get("weight_map")
    if isinstance(parts, dict) and parts and all(isinstance(part, str) for part in parts.values()):
        return sorted(set(parts.values()))
    if any(name.endswith(PICKLED) for name in files.names):
        raise Problem.of("E389")
    raise Problem.of("E388", reason=f"there is no {WEIGHTS} in it")


def _write_tokenizer(
    files: ModelFiles, folder: Path, base: Base, config: Mapping[str, Any]
) -> tuple[int, ChatTemplate]:
    """Write the tokenizer's files.

    Return its end-of-text token and its chat template. Raises Problem E388 if there is no tokenizer. Raises E391 if it
    is unreadable, has too many tokens for the model, or has no end-of-text token.
    """
    content = files.read(TOKENIZER, MOST_TOKENIZER)
    if content is None:
        raise Problem.of("E388", reason=f"there is no {TOKENIZER} in it")
    folder.mkdir(parents=True)
    (folder / TOKENIZER).write_bytes(content)
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:
        raise Problem.of("E391", reason=f"{TOKENIZER}: {error}") from error
    if pieces_of(tokenizer) > base.vocab:
        reason = f"its tokenizer has {pieces_of(tokenizer):,} tokens, it takes {base.vocab:,}"
        raise Problem.of("E391", reason=reason)
    settings = files.values(TOKENIZER_CONFIG)
    special = {name: text_of(settings[name]) for name in KEPT if settings.get(name) is not None}
    template = _template_of(files, settings)
    special |= {"chat_template": template} if template else {}
    write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    named = {name: special[name] for name in KEPT[:4] if isinstance(special.get(name), str)}
    write_json(folder / SPECIAL, named)
    return _end_of(tokenizer, special, config), ChatTemplate(template, named)


def _template_of(files: ModelFiles, settings: Mapping[str, Any]) -> str:
    """Return the chat template from its own file or, without that file, the default one from the settings.

    Return "" if the model has none.
    """
    alone = files.read(TEMPLATE)
    if alone is not None:
        return alone.decode(errors="replace")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _end_of(tokenizer: Tokenizer, special: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    named = special.get("eos_token")
    found = tokenizer.token_to_id(named) if isinstance(named, str) else None
    told = config.get("eos_token_id")
    ids = [found, *(told if isinstance(told, list) else [told])]
    end = next((each for each in ids if isinstance(each, int) and 0 <= each < tokenizer.get_vocab_size()), None)
    if end is None:
        raise Problem.of("E391", reason="no token of its tokenizer ends a text")
    return end


class PreparedAdapted(PreparedText, frozen=True, kw_only=True):
    """A prepared text with its base model, whose parameters are in `out`/model."""

    base: Base


def prepare(
    text: Path,
    out: Path,
    preparation: AdaptedText,
    further: Sequence[Path] = (),
    *,
    base: Path | None = None,
    names: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> PreparedAdapted:
    """Write `out`/model, `out`/tokenizer, `out`/shards and `out`/heldout.safetensors.

    `text`, `further`: sources of text. `base`: the base model's folder or zip, whose chat template renders
    conversations. Raises Problem E387 if there is no base model, E106 if the disk fails, and the errors of `read_base`,
    `open_texts` and `cut`.
    """
    del preparation  # it has no values, because the base model determines everything
    if base is None:
        raise Problem.of("E387")
    with disk_errors(out), ExitStack() as stack:
        read = read_base(base, out)
        writer = stack.enter_context(Writer(read.template))
        texts = open_all(sources_of((text, *further), names, fields), out, stack, writer)
        tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
        made = cut(texts, out, tokenizer, end=read.end)
    return msgspec.convert(msgspec.structs.asdict(made) | {"base": read.base}, PreparedAdapted)
