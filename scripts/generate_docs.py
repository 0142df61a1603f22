"""Write the generated pages of docs/ from the code. `--check` only reports pages that are out of date.

Run as `python -m scripts.generate_docs [--check]`.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import get_args

from msgspec import NODEFAULT, inspect

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.phases import TRANSITIONS
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.errors.entry import SAYS, Entry
from peer_agent.protocol.errors.intake import INTAKE
from peer_agent.protocol.errors.joining import JOINING
from peer_agent.protocol.errors.links import LINKS
from peer_agent.protocol.errors.material import MATERIAL
from peer_agent.protocol.errors.operating import OPERATING
from peer_agent.protocol.errors.site import SITE
from peer_agent.protocol.log import records
from peer_agent.protocol.log.records import Included, Unit
from peer_agent.protocol.messages import machine
from peer_agent.protocol.relay.reducing import TRANSITIONS as REDUCING
from peer_agent.protocol.session import FRAMES, RECEIVABLE
from peer_agent.protocol.wire import HEADER, Kind
from scripts.lateness_page import lateness_page
from scripts.permissions_page import permissions_page
from scripts.reference_pages import cli_page, recipes_page

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by `python -m scripts.generate_docs`; change the code or the frame there, not this file. -->\n"
HEADER_FIELDS = ("kind", "run", "step", "fence", "attempt", "span", "chunk", "slot")
HEADER_TYPES = {"B": "unsigned", "16s": "bytes", "Q": "unsigned", "I": "unsigned", "H": "unsigned"}
GROUPS = {
    "The handshake": (m.HANDSHAKE_TO_SERVER | m.HANDSHAKE_TO_CLIENT | m.Refusal),
    "Peer to site": m.TO_SITE,
    "Site to peer": m.TO_PEER,
    "To a relay": m.TO_RELAY,
    "From a relay": m.FROM_RELAY,
    "To a forwarding relay, and its reply": m.TO_FORWARD,
    "From a machine to its site, about itself": m.OF_MACHINE,
    "From a machine's owner, through the site": m.TO_MACHINE,
}
PARTS = (
    *(m.DoneUnit, m.InDoubt, m.Heard, m.Weight, m.Shard, m.Snapshot, m.Listener),
    *(m.Plan, m.Slot, m.PlannedSpan, Unit, Included, Signed, m.Arrival, m.Departure),
    *(machine.OwnerLimits, machine.Hours),
    *(records.Entry, records.RecordHead, records.SpanEntry, records.Scalars, records.Contribution, records.ChunkRange),
    *(records.Evidence, records.Restored),
)

PROTOCOL = """# The protocol, version {version}

A run is a replicated log: a snapshot of the model plus all updates committed since then. A *round* produces one
update.

1. Trainers accumulate gradients over samples leased to them. When together they have reached the target batch, the
   site's coordinator sends a *cut*.
2. Each trainer *offers* the work it holds, digest first. A signed *plan* fixes the weights and determines who averages
   which span.
3. Contributors stream chunks to reducers, which average and store them.
4. Once every span is stored, the site writes the record to the database. A step is committed only when it is in the
   database.

Nothing else ever changes parameters, and no peer takes a step alone.

## The coordinator

The coordinator is a single deterministic function, `advance(state, event, now, seed)`, in
`peer_agent/protocol/coordinator/`. A round that cannot finish is *void*: it is displayed and counted, but nothing is
applied. Gradients and leases are kept.

{transitions}

A reducer has at most one open attempt:

{reducing}

After the cut, every message names its run, step, fence and attempt. The *fence* increases with every host that claims
the run, and the *attempt* with every plan. Peers drop anything lower than the highest they have seen, and the
coordinator accepts only messages for the open attempt. After a restart, a host reads the head, lease marks and settled
units from the database. The open attempt becomes void, and every peer sends a new hello.

## Links

Every link is a WebSocket. A control link connects a peer to the site, and a data link connects a trainer to a reducer.
The listening side sends a challenge. The dialling side proves that it holds the key named in a credential that the site
has signed. The listening side then proves its own identity.

A forward link connects a trainer to a relay, which in turn connects it to a listener. Its frames carry the bytes of a
data link between the trainer and the listener, which the relay cannot read. The dialler requests a forward link with
the WebSocket subprotocol `manyhands.forward`.

A message consists of the byte `1` and a MessagePack map that includes its `type`. A peer that receives an unknown type
or field refuses the message with an error number (see [errors](errors.md)) and closes the link. A message may have up
to {max_message} bytes, or {max_handshake} before the link is open.

What each side may receive, by link and phase:

{receivable}

## Frames

Each frame consists of a big-endian header of {header_bytes} bytes, followed by a chunk. Frames never contain weights.
Forwarded bytes have the same header, with only the run filled in.

{header}

## Messages

{messages}
## Parts of messages

{parts}"""

ERRORS = """# Errors

Every error that users can see has a number, a title, a cause and a remedy. Words in angle brackets are placeholders.

{severities}

An error that *follows from* another one is hidden as long as the other one is shown.

{errors}"""

SECTIONS: dict[str, dict[str, Entry]] = {
    "On a volunteer's machine": AGENT,
    "Credentials, links and messages": LINKS,
    "Runs, uploads and accounts": SITE,
    "Datasets, models and tokenizers": MATERIAL,
    "Reading uploaded data": INTAKE,
    "Operating a site": OPERATING,
    "Joining a members-only run": JOINING,
}
OF_SETUP = "Setting up a checkout"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def transitions() -> str:
    rows = [(f"`{start}`", cause, f"`{end}`") for (start, cause), end in TRANSITIONS.items()]
    return table(("phase", "what happens", "next"), rows)


def reducing() -> str:
    rows = [(f"`{start}`", cause, f"`{end}`") for (start, cause), end in REDUCING.items()]
    return table(("phase", "what happens", "next"), rows)


def receivable() -> str:
    """Return a table of the messages that a session may receive in each phase."""
    rows = []
    for (side, link, phase), types in RECEIVABLE.items():
        names = [f"`{kind.__name__}`" for kind in sorted(types, key=lambda kind: kind.__name__)]
        kinds = FRAMES.get((side, link), ()) if phase == "open" else ()
        frames = [f"{kind.name.lower()} frames" for kind in sorted(kinds)]
        rows.append((side, link, phase, ", ".join(names + frames)))
    return table(("side", "link", "phase", "may receive"), rows)


def header() -> str:
    sizes = {"B": 1, "16s": 16, "Q": 8, "I": 4, "H": 2}
    codes = re.findall(r"\d*[A-Za-z]", HEADER.format.lstrip(">"))
    rows, offset = [], 0
    for name, code in zip(HEADER_FIELDS, codes, strict=True):
        rows.append((str(offset), str(sizes[code]), f"`{name}`", HEADER_TYPES[code]))
        offset += sizes[code]
    assert offset == HEADER.size
    kinds = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Kind)
    return table(("offset", "bytes", "field", "type"), rows) + f"\n\nKinds: {kinds}."


def struct_entry(cls: type, level: str) -> str:
    """Return the section about a message or a part of one, with its description and fields."""
    described = inspect.type_info(cls)
    assert isinstance(described, inspect.StructType)
    rows = [(f"`{field.name}`", type_name(field.type), default_of(field)) for field in described.fields]
    text = " ".join((cls.__doc__ or "").split())
    return f"{level} {cls.__name__}\n\n{text}\n\n" + table(("field", "type", "if left out"), rows) + "\n"


def default_of(field: inspect.Field) -> str:
    """Return the value that a field has if it is left out, or "" for a required field."""
    if field.required:
        return ""
    default = field.default.value if isinstance(field.default, Enum) else field.default
    return "empty" if default is NODEFAULT else f"`{default!r}`"


def type_name(kind: inspect.Type) -> str:
    """Return a description of a field's type, with its limits."""
    match kind:
        case inspect.IntType():
            return "integer" + limits(kind.ge, kind.le)
        case inspect.FloatType():
            return "number"
        case inspect.StrType():
            return "string" + (f" `{kind.pattern}`" if kind.pattern else limits(None, kind.max_length))
        case inspect.BytesType():
            return "bytes" + limits(kind.min_length, kind.max_length)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "nothing"
        case inspect.LiteralType() | inspect.EnumType():
            values = kind.values if isinstance(kind, inspect.LiteralType) else [each.value for each in kind.cls]
            return " or ".join(f"`{value}`" if value else "empty" for value in values)
        case inspect.VarTupleType():
            return f"list of {type_name(kind.item_type)}" + limits(None, kind.max_length)
        case inspect.TupleType():
            return "(" + ", ".join(type_name(item) for item in kind.item_types) + ")"
        case inspect.UnionType():
            return " or ".join(type_name(item) for item in kind.types)
        case inspect.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    raise TypeError(f"no words for {kind}")


def limits(least: float | None, most: float | None) -> str:
    if least is not None and least == most:
        return f", {least}"
    low = f", from {least}" if least not in (None, 0) else ""
    return low + (f", up to {most}" if most is not None else "")


def message_entries() -> str:
    """Return the sections about all messages, by direction. Messages of several directions are described once."""
    text, seen = "", set()
    for title, union in GROUPS.items():
        text += f"### {title}\n\n"
        for cls in get_args(union) or (union,):
            text += struct_entry(cls, "####") + "\n" if cls not in seen else f"`{cls.__name__}`, as above.\n\n"
            seen.add(cls)
    return text


def protocol_page() -> str:
    return NOTE + PROTOCOL.format(
        version=m.PROTOCOL,
        transitions=transitions(),
        reducing=reducing(),
        max_message=m.MAX_MESSAGE,
        max_handshake=m.MAX_HANDSHAKE,
        receivable=receivable(),
        header_bytes=HEADER.size,
        header=header(),
        messages=message_entries(),
        parts="\n".join(struct_entry(cls, "###") for cls in PARTS),
    )


def readable(text: str) -> str:
    """Return a format string as Markdown. Its fields appear in angle brackets."""
    return re.sub(r"\{(\w+)[^}]*\}", r"‹\1›", text).replace("\n", "  \n")


def setup_errors() -> dict[str, list[str]]:
    """Return the texts of the numbered errors in scripts/setup.py, by number.

    They are read from its source, because that script cannot import the error catalogue.
    """
    found: dict[str, list[str]] = {}
    for text in strings(ast.parse((ROOT / "scripts" / "setup.py").read_text(encoding="utf-8"))):
        numbered = re.match(r"(E9\d\d) (.*)", text, re.DOTALL)
        if numbered and numbered[2] not in found.setdefault(numbered[1], []):
            found[numbered[1]].append(numbered[2].strip())
    return {code: found[code] for code in sorted(found)}


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield all the strings in a program. An f-string becomes a format string with named fields."""
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(piece, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield node.value


def piece(part: ast.expr) -> str:
    """Return one part of an f-string as part of a format string.

    This is the part's text or, for an expression, the expression's first word in braces.
    """
    if isinstance(part, ast.FormattedValue):
        return "{" + re.split(r"\W", ast.unparse(part.value))[0] + "}"
    return str(ast.literal_eval(part))


def errors_page() -> str:
    text = ""
    for title, entries in SECTIONS.items():
        text += f"## {title}\n\n" + "".join(error_entry(code, entry) for code, entry in entries.items())
    text += f"## {OF_SETUP}\n\n"
    for code, complaints in setup_errors().items():
        text += f"### {code}\n\n" + "\n\n".join(readable(complaint) for complaint in complaints) + "\n\n"
    severities = table(("severity", "meaning"), [(f"*{name}*", words) for name, words in SAYS.items()])
    return NOTE + ERRORS.format(severities=severities, errors=text).rstrip() + "\n"


def error_entry(code: str, entry: Entry) -> str:
    remedy = " ".join(part for part in (entry.means, entry.remedy) if part)
    parts = (f"### {code}: {entry.title}", readable(entry.cause), readable(remedy), standing(entry))
    return "\n\n".join(parts) + "\n\n"


def standing(entry: Entry) -> str:
    """Return text on an error's severity, the delay before it is shown, and the errors that it follows from."""
    after = f", shown after {entry.shown_after_s:g} s" if entry.shown_after_s else ""
    causes = f" Follows from {', '.join(entry.depends_on)}." if entry.depends_on else ""
    return f"Severity: *{entry.severity}*{after}.{causes}"


PAGES: dict[str, Callable[[], str]] = {
    "docs/protocol.md": protocol_page,
    "docs/errors.md": errors_page,
    "docs/explanation/lateness.md": lambda: NOTE + lateness_page(table),
    "docs/permissions.md": lambda: NOTE + permissions_page(table),
    "docs/reference/cli.md": lambda: NOTE + cli_page(table),
    "docs/reference/recipes.md": lambda: NOTE + recipes_page(table),
}


def main(arguments: list[str]) -> int:
    """Write the generated pages. With `--check`, write nothing and return 1 if a page is out of date."""
    outdated = 0
    for name, made in PAGES.items():
        path, page = ROOT / name, made()
        if path.exists() and path.read_text(encoding="utf-8") == page:
            continue
        if "--check" in arguments:
            print(f"{name} is out of date. Run: python -m scripts.generate_docs", file=sys.stderr)
            outdated = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
            print(f"wrote {name}")
    return outdated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
