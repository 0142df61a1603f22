"""Commands that a volunteer's machine runs besides training: make a shard, or send a snapshot to the Hub."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.child import fail, succeed, telling_of_bytes
from peer_agent.recipes import parse_recipe

if TYPE_CHECKING:
    from peer_agent.publishing.pushing import Destination

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 (no public name exists)

# Each command imports its own modules, because torch and transformers take seconds to import and some commands need
# neither.


def run_hub_snapshot(given: argparse.Namespace) -> msgspec.Struct:
    from peer_agent.publishing.card import parse_facts
    from peer_agent.publishing.hub_client import check_name
    from peer_agent.publishing.pushing import push, teller
    from peer_agent.publishing.release import make_release

    check_name(given.repository)
    folder, facts = given.folder, parse_facts((given.folder / "facts.json").read_bytes())
    released = make_release(
        recipe=recipe_in(folder / "recipe.json"),
        snapshot=folder / "state.safetensors",
        data=given.data or folder,
        out=folder / "out",
        facts=facts,
    )
    names = tuple(file.name for file in released.files if file.name != released.archive)
    message = f"Manyhands: {facts.slug}, step {facts.steps}"
    return push(folder / "out", names, destination(given), secret(), message=message, tell=teller(None))


def run_shard(given: argparse.Namespace) -> msgspec.Struct:
    """Make a shard. This process has no Hub token. Its parent process applies the owner's download limit."""
    from peer_agent.publishing.portions import make_portion
    from peer_agent.publishing.row_groups import limit_memory

    limit_memory()
    return make_portion(given.file, given.tokenizer, given.out, given.endpoint, telling_of_bytes())


def destination(given: argparse.Namespace) -> "Destination":
    from peer_agent.publishing.pushing import Destination

    names = ("repository", "endpoint", "branch", "private", "replace", "known")
    return Destination(**{name: getattr(given, name) for name in names})


def secret() -> str:
    """Read a token from standard input, since a command-line argument would be visible in process lists."""
    return sys.stdin.readline().strip()


def recipe_in(path: Path) -> Recipe:
    return parse_recipe(path.read_bytes())


def add_commands(commands: Commands) -> None:
    add_command(commands, "shard", run_shard, "file", "tokenizer", "out", unexpected="E347", is_online=True)
    snapshot = add_command(commands, "hub-snapshot", run_hub_snapshot, "folder", unexpected="E347", is_online=True)
    add_destination(snapshot)
    snapshot.add_argument("--data", type=Path, help="what the run's data were prepared to; usually in the folder")


def add_destination(command: argparse.ArgumentParser) -> None:
    command.add_argument("--repository", required=True)
    command.add_argument("--known", default="")
    command.add_argument("--branch", default="main")
    command.add_argument("--private", action="store_true")
    command.add_argument("--replace", action="store_true")


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], msgspec.Struct],
    *paths: str,
    unexpected: str = "E312",
    is_online: bool = False,
) -> argparse.ArgumentParser:
    """Add a command. `unexpected`: the error code for exceptions without one. Its text may have no placeholder except
    `reason`. `is_online`: True if the command uses the Hub.
    """
    command = commands.add_parser(name)
    command.set_defaults(run=run, unexpected=unexpected, is_online=is_online)
    for path in paths:
        command.add_argument(path, type=Path)
    if is_online:
        command.add_argument("--endpoint", required=True)
    return command


def main(add: Callable[[Commands], None] = add_commands, about: str | None = __doc__) -> int:
    """Run a command. Return the exit status: 0, or 1 on error."""
    parser = argparse.ArgumentParser(prog="python -m", description=about)
    add(parser.add_subparsers(dest="command", required=True))
    given = parser.parse_args()
    if not given.is_online:
        os.environ["HF_HUB_OFFLINE"] = "1"  # otherwise, libraries could use the network
    try:
        facts = given.run(given)
    except Problem as problem:
        return fail(problem.fault)
    except Exception as error:  # noqa: BLE001 (the parent process reports the error)
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return fail(Fault.of(given.unexpected, reason=reason))
    return succeed(facts)


if __name__ == "__main__":
    sys.exit(main())
