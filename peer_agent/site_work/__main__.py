"""Commands for the site's long tasks. Their output has the same format as in `peer_agent.publishing`."""

import argparse
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peer_agent.publishing import __main__ as publishing
from peer_agent.publishing.__main__ import Commands, add_command, add_destination, destination, recipe_in, secret
from peer_agent.recipes.preparation import parse_preparation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peer_agent.site_work.fetching import Wanted
    from peer_agent.site_work.replay import Logs

LOW = 10  # added to the process's niceness, so that people's requests come first


def run_prepare(given: argparse.Namespace) -> msgspec.Struct:
    preparation = parse_preparation(given.preparation)
    prepare = importlib.import_module(preparation.module).prepare
    more: dict[str, Any] = {"base": given.base} if given.base is not None else {}
    more |= {"names": given.name, "fields": given.field}
    made: msgspec.Struct = prepare(given.file, given.out, preparation, given.also, **more)
    return made


def run_initial(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.site_work.replay import make_initial

    return make_initial(recipe_in(given.recipe), given.out, given.files)


def run_release(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.card import parse_facts
    from peer_agent.publishing.release import make_release

    facts = parse_facts(given.facts.read_bytes())
    recipe = recipe_in(given.recipe)
    return make_release(recipe=recipe, snapshot=given.snapshot, data=given.data, out=given.out, facts=facts)


@contextlib.contextmanager
def _logs(given: argparse.Namespace) -> "Iterator[Logs]":
    """Open the sources of averages: folders, and relays, whose key is on standard input."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from peer_agent.site_work.relay_logs import RelayLogs
    from peer_agent.site_work.replay import Logs

    with contextlib.ExitStack() as stack:
        relays = None
        if given.reach is not None:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret()))
            relays = stack.enter_context(RelayLogs(given.reach, key, given.site_key))
        yield Logs(given.log, relays)


def run_replay(given: argparse.Namespace) -> msgspec.Struct:
    _give_way()

    from peer_agent.site_work.replay import replay, telling

    with _logs(given) as logs:
        return replay(
            recipe=recipe_in(given.recipe),
            snapshot=given.snapshot,
            records=given.records,
            logs=logs,
            site_key=given.site_key,
            out=given.out,
            begins=given.begins,
            expected=given.expected,
            tell=telling(given.progress),
            files=given.files,
        )


def run_recheck(given: argparse.Namespace) -> msgspec.Struct:
    _give_way()

    from peer_agent.site_work.recheck import recheck
    from peer_agent.site_work.replay import telling

    paths = {name: getattr(given, name) for name in ("snapshot", "records", "asked", "shards", "files")}
    with _logs(given) as logs:
        tell = telling(given.progress)
        return recheck(recipe=recipe_in(given.recipe), logs=logs, site_key=given.site_key, tell=tell, **paths)


def run_evaluate(given: argparse.Namespace) -> msgspec.Struct:
    _give_way()

    import torch

    from peer_agent.site_work.evaluate import evaluate

    torch.set_num_threads(1)
    paths = {name: getattr(given, name) for name in ("snapshot", "heldout", "files", "data")}
    return evaluate(recipe=recipe_in(given.recipe), prompts=given.prompt, **paths)


def run_write(given: argparse.Namespace) -> msgspec.Struct:
    """Continue a prompt from standard input, since a prompt passed as an argument would be visible in process lists."""
    _give_way()

    from peer_agent.site_work.evaluate import write

    bounds = {name: getattr(given, name) for name in ("tokens", "seconds", "seed", "memory")}
    return write(given.folder, sys.stdin.buffer.read().decode("utf-8", "replace"), **bounds)


def run_hub_check(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.hub_client import check_token

    return check_token(secret(), given.endpoint)


def run_hub_push(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.pushing import push, teller

    to, tell = destination(given), teller(given.progress)
    return push(given.folder, tuple(given.name), to, secret(), message=given.message, tell=tell)


def run_hub_look(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.site_work.fetching import look

    return look(_wanted(given), secret(), most=given.most)


def run_hub_fetch(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.site_work.fetching import fetch

    if given.streamed:
        from peer_agent.publishing.row_groups import limit_memory
        from peer_agent.site_work.streaming import fetch_sample

        limit_memory()
        return fetch_sample(_wanted(given), given.commit, given.folder, most=given.most)
    return fetch(_wanted(given), given.commit, given.folder, secret(), most=given.most)


def _wanted(given: argparse.Namespace) -> "Wanted":
    from peer_agent.site_work.fetching import Wanted

    return Wanted(**{name: getattr(given, name) for name in ("repository", "endpoint", "kind", "files")})


def _give_way() -> None:
    if hasattr(os, "nice"):
        os.nice(LOW)


def add_commands(commands: Commands) -> None:
    publishing.add_commands(commands)
    prepare = add_command(commands, "prepare", run_prepare, "file", "out", unexpected="E309")
    prepare.add_argument("--preparation", required=True)
    prepare.add_argument("--base", type=Path, help="the model that the recipe adapts: its folder, or a zip")
    prepare.add_argument("--also", type=Path, action="append", default=[], help="further sources of the data")
    prepare.add_argument("--name", action="append", default=[], help="the file's name, for each source in order")
    prepare.add_argument("--field", action="append", default=[], help="the field to read, for each source in order")
    initial = add_command(commands, "initial", run_initial, "recipe", "out")
    release = add_command(commands, "release", run_release, "recipe", "snapshot", "data", "out")
    release.add_argument("--facts", type=Path, required=True)
    evaluate = add_command(commands, "evaluate", run_evaluate, "recipe", "snapshot", "heldout", unexpected="E360")
    evaluate.add_argument(
        "--data", type=Path, default=Path(), help="what was prepared, whose tokenizer reads the prompts"
    )
    evaluate.add_argument("--prompt", action="append", default=[], help="what the model continues")
    write = add_command(commands, "write", run_write, "folder", unexpected="E327")
    write.add_argument("--tokens", type=int, required=True)
    write.add_argument("--seconds", type=float, required=True)
    write.add_argument("--seed", type=int, required=True)
    write.add_argument("--memory", type=int, default=0, help="bytes")
    replay = add_command(commands, "replay", run_replay, "recipe", "snapshot", "records", "out")
    replay.add_argument("--begins", default="", help="sha256 of the snapshot")
    replay.add_argument("--expected", default="", help="sha256 of a state that needs not be written")
    recheck = add_command(commands, "recheck", run_recheck, "recipe", "snapshot", "records", "asked", "shards")
    for command in (replay, recheck):
        command.add_argument("--log", type=Path, action="append", default=[])
        command.add_argument("--site-key", type=bytes.fromhex, required=True)
        command.add_argument("--reach", type=Path, help="how relays are reached; the key is on standard input")
        command.add_argument("--progress", type=Path)
    for command in (initial, evaluate, replay, recheck):
        command.add_argument("--files", type=Path, default=Path(), help="where those lie that the model is built from")
    _add_hub_commands(commands)


def _add_hub_commands(commands: Commands) -> None:
    add_command(commands, "hub-check", run_hub_check, unexpected="E347", is_online=True)
    look = add_command(commands, "hub-look", run_hub_look, unexpected="E347", is_online=True)
    fetch = add_command(commands, "hub-fetch", run_hub_fetch, "folder", unexpected="E347", is_online=True)
    fetch.add_argument("--commit", required=True)
    fetch.add_argument("--streamed", action="store_true", help="a sample, and a list of what else there is")
    for command in (look, fetch):
        command.add_argument("--repository", required=True)
        command.add_argument("--kind", choices=("dataset", "model", "tokenizer"), required=True)
        command.add_argument("--files", default="", help="of a dataset: which, as in data/train-*")
        command.add_argument("--most", type=int, required=True, help="bytes")
    push = add_command(commands, "hub-push", run_hub_push, "folder", unexpected="E347", is_online=True)
    add_destination(push)
    push.add_argument("--message", required=True)
    push.add_argument("--name", action="append", required=True)
    push.add_argument("--progress", type=Path)


if __name__ == "__main__":
    sys.exit(publishing.main(add_commands, __doc__))
