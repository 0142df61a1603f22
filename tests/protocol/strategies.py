"""Hypothesis strategies for any msgspec struct, derived from its annotations and limits."""

from collections.abc import Callable
from typing import Any, get_args

from hypothesis import strategies as st
from msgspec import inspect

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import AnyMessage
from peer_agent.protocol.wire import Frame, Kind

MESSAGE_TYPES: tuple[type, ...] = get_args(AnyMessage)


def structs(cls: type) -> st.SearchStrategy[Any]:
    """Return a strategy for instances within their annotations' limits."""
    return st.builds(cls, **{field.name: _values(field.type) for field in _fields(cls)})


def messages() -> st.SearchStrategy[Any]:
    return st.sampled_from(MESSAGE_TYPES).flatmap(structs)


def frames() -> st.SearchStrategy[Frame]:
    short, long = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
    return st.builds(
        Frame,
        kind=st.sampled_from([kind for kind in Kind if kind is not Kind.MESSAGE]),
        run=st.binary(min_size=16, max_size=16).map(lambda run: RunId(run.hex())),
        step=st.integers(0, 2**53),
        fence=long,
        attempt=short,
        span=short,
        chunk=long,
        slot=short,
        payload=st.binary(max_size=200),
    )


def sample(cls: type) -> Any:
    """Return one fixed instance, in which optional fields keep their defaults."""
    return cls(**{field.name: _sample(field.type) for field in _fields(cls) if field.required})


def _fields(cls: type) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(cls)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    return VALUES[type(kind)](kind)


def _sample(kind: inspect.Type) -> Any:
    return SAMPLES[type(kind)](kind)


def _strings(kind: Any) -> st.SearchStrategy[str]:
    if kind.pattern in DIGITS:  # far cheaper than drawing from the regular expression
        return st.binary(min_size=DIGITS[kind.pattern], max_size=DIGITS[kind.pattern]).map(bytes.hex)
    if kind.pattern is not None:
        return st.from_regex(kind.pattern, fullmatch=True).filter(lambda text: not text.endswith("\n"))
    return st.text(min_size=kind.min_length or 0, max_size=20)


DIGITS = {"^[0-9a-f]{32}$": 16, "^[0-9a-f]{64}$": 32}  # patterns of hexadecimal digits, with the number of bytes


def _integers(kind: inspect.IntType) -> st.SearchStrategy[int]:
    """Return integers within a type's limits. Without limits, an integer has 64 bits on the wire."""
    least = kind.ge if kind.ge is not None else -(2**63) if kind.gt is None else kind.gt + 1
    return st.integers(least, kind.le if kind.le is not None else 2**63 - 1 if kind.lt is None else kind.lt - 1)


VALUES: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.IntType: _integers,
    inspect.FloatType: lambda kind: st.floats(kind.ge, kind.le, allow_nan=False),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.StrType: _strings,
    inspect.BytesType: lambda kind: st.binary(min_size=kind.min_length or 0, max_size=min(kind.max_length or 64, 64)),
    inspect.NoneType: lambda _: st.none(),
    inspect.LiteralType: lambda kind: st.sampled_from(kind.values),
    inspect.EnumType: lambda kind: st.sampled_from(list(kind.cls)),
    inspect.UnionType: lambda kind: st.one_of([_values(one) for one in kind.types]),
    inspect.TupleType: lambda kind: st.tuples(*(_values(one) for one in kind.item_types)),
    inspect.VarTupleType: lambda kind: st.lists(_values(kind.item_type), max_size=2).map(tuple),
    inspect.StructType: lambda kind: structs(kind.cls),
}
PATTERNS = {
    None: "",
    "^[0-9a-f]{32}$": "0" * 32,
    r"^([0-9a-f]{32}|\*)$": "0" * 32,
    "^[0-9a-f]{64}$": "0" * 64,
    "^([0-9a-f]{16})?$": "",
}
SAMPLES: dict[type, Callable[[Any], Any]] = {
    inspect.IntType: lambda kind: kind.ge or 0,
    inspect.FloatType: lambda kind: kind.ge or 0.0,
    inspect.BoolType: lambda _: False,
    inspect.StrType: lambda kind: PATTERNS[kind.pattern],
    inspect.BytesType: lambda kind: bytes(kind.min_length or 0),
    inspect.NoneType: lambda _: None,
    inspect.LiteralType: lambda kind: kind.values[0],
    inspect.EnumType: lambda kind: next(iter(kind.cls)),
    inspect.UnionType: lambda kind: _sample(kind.types[0]),
    inspect.TupleType: lambda kind: tuple(_sample(one) for one in kind.item_types),
    inspect.VarTupleType: lambda _: (),
    inspect.StructType: lambda kind: sample(kind.cls),
}
