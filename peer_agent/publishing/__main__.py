"""The site's long work, a command each: prepares texts, makes models and releases, replays logs, sends to the Hub,
writes.

The last line of the output is a JSON object of facts; with status 1 the last line of the errors is a numbered error.
"""

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.child import fail, succeed, telling_of_bytes
from peer_agent.recipes import parse_recipe
from peer_agent.recipes.preparation import parse_preparation

if TYPE_CHECKING:
    from peer_agent.publishing.hub.fetching import Wanted
    from peer_agent.publishing.hub.pushing import Destination

# All but `shard` have a token on standard input, so that no list of processes shows it.
ONLINE = {
    "shard",
    "hub-check",
    "hub-push",
    "hub-snapshot",
    "hub-look",
    "hub-fetch",
}
UNEXPECTED = {
    "prepare": "E309",
    "evaluate": "E360",
    "write": "E327",
    "hub-check": "E347",
    "hub-push": "E347",
    "hub-snapshot": "E347",
    "hub-look": "E347",
    "hub-fetch": "E347",
    "shard": "E414",
}  # else E312

LOW = 10  # of the priorities that a process may have: after what the site does for people


# torch and transformers take seconds to import and data need neither, so each command imports its own.


def run_prepare(given: argparse.Namespace) -> msgspec.Struct:
    preparation = parse_preparation(given.preparation)
    prepare = importlib.import_module(preparation.module).prepare
    more: dict[str, Any] = {"base": given.base} if given.base is not None else {}
    made: msgspec.Struct = prepare(given.file, given.out, preparation, *([given.also] if given.also else []), **more)
    return made


def run_initial(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.initial import make_initial

    return make_initial(_recipe(given.recipe), given.out, given.files)


def run_release(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.card import parse_facts
    from peer_agent.publishing.release import make_release

    facts = parse_facts(given.facts.read_bytes())
    return make_release(
        recipe=_recipe(given.recipe), snapshot=given.snapshot, data=given.data, out=given.out, facts=facts
    )


def run_replay(given: argparse.Namespace) -> msgspec.Struct:
    if hasattr(os, "nice"):
        os.nice(LOW)

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from peer_agent.publishing.relay_logs import RelayLogs
    from peer_agent.publishing.replay import Logs, replay, telling

    with contextlib.ExitStack() as stack:
        relays = None
        if given.reach is not None:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(_secret()))
            relays = stack.enter_context(RelayLogs(given.reach, key, given.site_key))
        return replay(
            recipe=_recipe(given.recipe),
            snapshot=given.snapshot,
            records=given.records,
            logs=Logs(given.log, relays),
            site_key=given.site_key,
            out=given.out,
            begins=given.begins,
            expected=given.expected,
            tell=telling(given.progress),
            files=given.files,
        )


def run_evaluate(given: argparse.Namespace) -> msgspec.Struct:
    if hasattr(os, "nice"):
        os.nice(LOW)

    import torch

    from peer_agent.publishing.evaluate import evaluate

    torch.set_num_threads(1)
    paths = {name: getattr(given, name) for name in ("snapshot", "heldout", "files", "data")}
    return evaluate(recipe=_recipe(given.recipe), prompts=given.prompt, **paths)


def run_write(given: argparse.Namespace) -> msgspec.Struct:
    """The prompt is on standard input: no list of processes shows it."""
    if hasattr(os, "nice"):
        os.nice(LOW)

    from peer_agent.publishing.writing import write

    bounds = {name: getattr(given, name) for name in ("tokens", "seconds", "seed", "memory")}
    return write(given.folder, sys.stdin.buffer.read().decode("utf-8", "replace"), **bounds)


def run_hub_check(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.hub.client import check_token

    return check_token(_secret(), given.endpoint)


def run_hub_push(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.hub.pushing import push, teller

    to, tell = _destination(given), teller(given.progress)
    return push(given.folder, tuple(given.name), to, _secret(), message=given.message, tell=tell)


def run_hub_snapshot(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.card import parse_facts
    from peer_agent.publishing.hub.names import check_name
    from peer_agent.publishing.hub.pushing import push, teller
    from peer_agent.publishing.release import make_release

    check_name(given.repository)
    folder, facts = given.folder, parse_facts((given.folder / "facts.json").read_bytes())
    released = make_release(
        recipe=_recipe(folder / "recipe.json"),
        snapshot=folder / "state.safetensors",
        data=given.data or folder,
        out=folder / "out",
        facts=facts,
    )
    names = tuple(file.name for file in released.files if file.name != released.archive)
    message = f"Manyhands: {facts.slug}, step {facts.steps}"
    return push(folder / "out", names, _destination(given), _secret(), message=message, tell=teller(None))


def run_hub_look(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.hub.fetching import look

    return look(_wanted(given), _secret(), most=given.most)


def run_hub_fetch(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.hub.fetching import fetch

    if given.streamed:
        from peer_agent.publishing.streaming import fetch_sample
        from peer_agent.publishing.text.row_groups import limit_memory

        limit_memory()
        return fetch_sample(_wanted(given), given.commit, given.folder, most=given.most)
    return fetch(_wanted(given), given.commit, given.folder, _secret(), most=given.most)


def run_shard(given: argparse.Namespace) -> msgspec.Struct:
    """On a volunteer's machine, which shows the Hub no token, and whose owner may limit what comes."""
    from peer_agent.publishing.portion import make_portion
    from peer_agent.publishing.text.row_groups import limit_memory

    limit_memory()
    return make_portion(given.file, given.tokenizer, given.out, given.endpoint, telling_of_bytes())


def _wanted(given: argparse.Namespace) -> "Wanted":
    from peer_agent.publishing.hub.fetching import Wanted

    return Wanted(**{name: getattr(given, name) for name in ("repository", "endpoint", "kind", "files")})


def _destination(given: argparse.Namespace) -> "Destination":
    from peer_agent.publishing.hub.pushing import Destination

    names = ("repository", "endpoint", "branch", "private", "replace", "known")
    return Destination(**{name: getattr(given, name) for name in names})


def _secret() -> str:
    return sys.stdin.readline().strip()


def _recipe(path: Path) -> Recipe:
    return parse_recipe(path.read_bytes())


def parser() -> argparse.ArgumentParser:
    """The commands."""
    whole = argparse.ArgumentParser(prog="python -m peer_agent.publishing", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    prepare = _command(commands, "prepare", run_prepare, "file", "out")
    prepare.add_argument("--preparation", required=True)
    prepare.add_argument("--base", type=Path, help="the model that the recipe adapts: its folder, or a zip")
    prepare.add_argument("--also", type=Path, action="append", default=[], help="further sources of the data")
    initial = _command(commands, "initial", run_initial, "recipe", "out")
    release = _command(commands, "release", run_release, "recipe", "snapshot", "data", "out")
    release.add_argument("--facts", type=Path, required=True)
    evaluate = _command(commands, "evaluate", run_evaluate, "recipe", "snapshot", "heldout")
    evaluate.add_argument(
        "--data", type=Path, default=Path(), help="what was prepared, whose tokenizer reads the prompts"
    )
    evaluate.add_argument("--prompt", action="append", default=[], help="what the model continues")
    write = _command(commands, "write", run_write, "folder")
    write.add_argument("--tokens", type=int, required=True)
    write.add_argument("--seconds", type=float, required=True)
    write.add_argument("--seed", type=int, required=True)
    write.add_argument("--memory", type=int, default=0, help="bytes")
    replay = _command(commands, "replay", run_replay, "recipe", "snapshot", "records", "out")
    replay.add_argument("--log", type=Path, action="append", default=[])
    replay.add_argument("--site-key", type=bytes.fromhex, required=True)
    replay.add_argument("--begins", default="", help="sha256 of the snapshot")
    replay.add_argument("--expected", default="", help="sha256 of a state that needs not be written")
    replay.add_argument("--reach", type=Path, help="how relays are reached; the key is on standard input")
    replay.add_argument("--progress", type=Path)
    for command in (initial, evaluate, replay):
        command.add_argument("--files", type=Path, default=Path(), help="where those lie that the model is built from")
    _hub_commands(commands)
    return whole


def _hub_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    look = _command(commands, "hub-look", run_hub_look)
    fetch = _command(commands, "hub-fetch", run_hub_fetch, "folder")
    fetch.add_argument("--commit", required=True)
    fetch.add_argument("--streamed", action="store_true", help="a sample, and a list of what else there is")
    shard = _command(commands, "shard", run_shard, "file", "tokenizer", "out")
    for command in (look, fetch):
        command.add_argument("--repository", required=True)
        command.add_argument("--kind", choices=("dataset", "model", "tokenizer"), required=True)
        command.add_argument("--files", default="", help="of a dataset: which, as in data/train-*")
        command.add_argument("--most", type=int, required=True, help="bytes")
    check = _command(commands, "hub-check", run_hub_check)
    push = _command(commands, "hub-push", run_hub_push, "folder")
    snapshot = _command(commands, "hub-snapshot", run_hub_snapshot, "folder")
    for command in (check, push, snapshot, look, fetch, shard):
        command.add_argument("--endpoint", required=True)
    for command in (push, snapshot):
        command.add_argument("--repository", required=True)
        command.add_argument("--known", default="")
        command.add_argument("--branch", default="main")
        command.add_argument("--private", action="store_true")
        command.add_argument("--replace", action="store_true")
    push.add_argument("--message", required=True)
    push.add_argument("--name", action="append", required=True)
    push.add_argument("--progress", type=Path)
    snapshot.add_argument("--data", type=Path, help="what the run's data were prepared to; usually in the folder")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], msgspec.Struct],
    *paths: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name)
    command.set_defaults(run=run)
    for path in paths:
        command.add_argument(path, type=Path)
    return command


def main(arguments: list[str] | None = None) -> int:
    """Status 0, or 1 after an error."""
    given = parser().parse_args(arguments)
    if given.command not in ONLINE:
        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing else may ask the network for anything
    try:
        facts = given.run(given)
    except Problem as problem:
        return fail(problem.fault)
    except Exception as error:  # noqa: BLE001 - the process's edge: the site records what it reads
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return fail(Fault.of(UNEXPECTED.get(given.command, "E312"), reason=reason))
    return succeed(facts)


if __name__ == "__main__":
    sys.exit(main())
