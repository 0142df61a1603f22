"""One command: facts as a JSON object on stdout's last line, or an error as one on stderr's last line and status 1."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import Recipe, parse_recipe

UNEXPECTED = {"prepare": "E309", "initial": "E312", "release": "E312", "replay": "E312"}


# torch and transformers take seconds to import and the text needs neither, so each command imports its own.


def run_prepare(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.prepare import prepare

    return prepare(given.text, given.out, vocab=given.vocab)


def run_initial(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.initial import make_initial

    return make_initial(_recipe(given.recipe), given.out)


def run_release(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.card import parse_facts
    from peer_agent.publishing.release import make_release

    facts = parse_facts(given.facts.read_bytes())
    return make_release(
        recipe=_recipe(given.recipe), snapshot=given.snapshot, tokenizer=given.tokenizer, out=given.out, facts=facts
    )


def run_replay(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.replay import read_digests, replay

    return replay(
        recipe=_recipe(given.recipe),
        snapshot=given.snapshot,
        records=given.records,
        logs=given.log,
        site_key=given.site_key,
        digests=read_digests(given.digests),
        out=given.out,
    )


def _recipe(path: Path) -> Recipe:
    return parse_recipe(path.read_bytes())


def parser() -> argparse.ArgumentParser:
    """The commands."""
    whole = argparse.ArgumentParser(prog="python -m peer_agent.publishing", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    _command(commands, "prepare", run_prepare, "text", "out").add_argument("--vocab", type=int, required=True)
    _command(commands, "initial", run_initial, "recipe", "out")
    release = _command(commands, "release", run_release, "recipe", "snapshot", "tokenizer", "out")
    release.add_argument("--facts", type=Path, required=True)
    replay = _command(commands, "replay", run_replay, "recipe", "snapshot", "records", "out")
    replay.add_argument("--log", type=Path, action="append", default=[])
    replay.add_argument("--site-key", type=bytes.fromhex, required=True)
    replay.add_argument("--digests", type=Path, required=True)
    return whole


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
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here may ask the network for anything
    given = parser().parse_args(arguments)
    try:
        facts = given.run(given)
    except Problem as problem:
        return _fail(problem.fault)
    except Exception as error:  # noqa: BLE001 - the process's edge: the site records what it reads
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(Fault.of(UNEXPECTED[given.command], reason=reason))
    print(msgspec.json.encode(facts).decode(), flush=True)
    return 0


def _fail(fault: Fault) -> int:
    print(msgspec.json.encode(fault).decode(), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
