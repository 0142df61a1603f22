"""Generate the pages docs/reference/cli.md, from the agent's commands, and recipes.md, from the recipes' types."""

import os
from collections.abc import Callable, Sequence

from msgspec import NODEFAULT, inspect

from peer_agent.protocol.recipe import Recipe, Words
from peer_agent.recipes import KINDS

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
CLI = """# The `manyhands` command

`manyhands COMMAND --help` prints the same information, in your language if a translation exists. The exit status is 0
on success, 1 after a numbered [error](../errors.md), and 2 if the command line is invalid. The agent also reads
[environment variables](settings.md#the-agent). The output of `join --json` is described in [JSON lines](json-lines.md).

{commands}"""
RECIPES = """# Recipe values

A recipe is a validated description of what a run trains. You can set these values in the form for a new run, and the
API returns them as `recipe`. Once a run is open, only the number of steps and the weights of its sources can be
changed. To write your own kind of recipe, see [Add a recipe](../adding-a-recipe.md).

## All recipes

{common}

{kinds}"""


def cli_page(table: Table) -> str:
    """Return the page about the agent's commands and their options, except hidden ones."""
    os.environ["MANYHANDS_LANGUAGE"] = "en"  # the variable is read when the commands are defined
    import typer.main
    from typer.core import TyperGroup

    from peer_agent.cli import app

    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    parts = []
    for name, command in group.commands.items():
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        options = [parameter for parameter in shown if parameter.opts[0].startswith("-")]
        named = {each: (each.name or "").upper() for each in shown if each not in options}
        arguments = [word if each.required else f"[{word}]" for each, word in named.items()]
        usage = " ".join(("manyhands", name, *arguments, *(["[OPTIONS]"] if options else [])))
        rows = [
            (f"`{each.opts[0]}`", _stated(each.default or None), getattr(each, "help", None) or "") for each in options
        ]
        listed = f"\n{table(('option', 'default', 'what it does'), rows)}\n" if rows else ""
        parts.append(f"## {name}\n\n    {usage}\n\n{command.help}\n{listed}")
    return CLI.format(commands="\n".join(parts))


def recipes_page(table: Table) -> str:
    """Return the page about all recipe values that forms offer: first those common to all, then those of each kind."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")  # needed for translations
    from web.pages.runs.forms.recipe import COMMON

    def values(kind: inspect.Type, words: Sequence[Words]) -> str:
        rows = [_row(kind, each) for each in words]
        return table(("value", "allowed values", "default", "meaning"), rows)

    common = values(inspect.type_info(Recipe), [each for group in COMMON.values() for each in group])
    parts = []
    ours = {name: kind for name, kind in sorted(KINDS.items()) if kind.__module__.startswith("peer_agent.recipes.")}
    for name, kind in ours.items():
        presets = f" Presets: *{'*; *'.join(kind.presets)}*." if kind.presets else ""
        parts.append(
            f"## {kind.title}\n\n`{name}`. {kind.about}{presets}\n\n{values(inspect.type_info(kind), kind.words)}\n"
        )
    return RECIPES.format(common=common, kinds="\n".join(parts))


def _row(described: inspect.Type, words: Words) -> tuple[str, ...]:
    default: object = NODEFAULT
    for step in words.path.split("."):
        assert isinstance(described, inspect.StructType)
        field = next(each for each in described.fields if each.name == step)
        described, default = field.type, getattr(default, step, field.default)
    meaning = f"{words.label}. {words.help}" if words.help else f"{words.label}."
    return f"`{words.path}`", _bounds(described), _stated(default), meaning


def _bounds(described: inspect.Type) -> str:
    """Return text on the limits or choices of a recipe's value."""
    match described:
        case inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case inspect.IntType() | inspect.FloatType():
            kind = "integer" if isinstance(described, inspect.IntType) else "number"
            low = [f"at least {described.ge:,}"] if described.ge is not None else []
            low += [f"greater than {described.gt:,}"] if described.gt is not None else []
            high = [f"at most {described.le:,}"] if described.le is not None else []
            high += [f"less than {described.lt:,}"] if described.lt is not None else []
            return ", ".join((kind, *low, *high))
    raise TypeError(f"no words for {described}")


def _stated(value: object) -> str:
    """Return a default value as code, or "" if there is none."""
    return "" if value is None or value is NODEFAULT else f"`{value}`"
