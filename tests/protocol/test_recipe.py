"""A recipe is checked before any work is done."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import (
    KINDS,
    Optimizer,
    OutOfBounds,
    Recipe,
    as_values,
    checked,
    encode_recipe,
    parse_recipe,
    recipe_of,
    register,
)
from peer_agent.recipes.causal_lm import CausalLM, Model

USUAL = (  # as version 0.1.0 writes it
    b'{"objective":"causal_lm","model":{"family":"gpt2","layers":2,"width":64,"heads":4,"context":64,"kv_heads":0},'
    b'"optimizer":{"name":"lamb","learning_rate":0.01,"beta1":0.9,"beta2":0.98,"epsilon":1e-6,"weight_decay":0.01,'
    b'"clip_norm":1.0,"warmup_steps":10,"decay":"cosine","final_ratio":0.1},"vocab":2048,"target_batch":48,'
    b'"micro_batch":4,"target_steps":1000,"minimum_trainers":1,"snapshot_every":20,"staleness":0,"codec_up":"fp16",'
    b'"codec_down":"fp16","contributors":"all","codecs":"stated","rule":"mean","precision":"fp32","seed":0,"mix":[],"end":0}'
)


def test_the_usual_recipe_is_fine_and_its_bytes_are_canonical() -> None:
    data = encode_recipe(CausalLM())
    assert data == USUAL
    assert parse_recipe(data) == CausalLM()
    assert encode_recipe(parse_recipe(data)) == data
    assert parse_recipe(b"{}") == CausalLM()


@pytest.mark.parametrize(
    ("samples", "warmup", "steps"),
    [(6_000, 10, 500), (6_001, 10, 501), (10, 10, 100), (10**9, 10, 10_000), (10, 300, 300), (10**9, 20_000, 20_000)],
)
def test_steps_that_nobody_states_are_a_few_passes_within_bounds(samples: int, warmup: int, steps: int) -> None:
    recipe = CausalLM(target_batch=48, optimizer=Optimizer(warmup_steps=warmup))
    assert recipe.usual_passes == 4
    assert recipe.steps_over(samples) == steps


@pytest.mark.parametrize(
    "text",
    [
        '{"target_batch": 0}',
        '{"target_batch": 1000001}',
        '{"target_batch": 1.5}',
        '{"target_batch": "48"}',
        '{"objective": "chess"}',
        '{"objective": 3}',
        '{"objective": "Recipe"}',
        '{"vocab": 256}',
        '{"vocab": 65537}',
        '{"model": {"layers": 0}}',
        '{"model": {"width": 8193}}',
        '{"model": {"context": 7}}',
        '{"model": {"family": "bert"}}',
        '{"optimizer": {"learning_rate": 0}}',
        '{"optimizer": {"learning_rate": 1e999}}',
        '{"optimizer": {"beta1": 1}}',
        '{"optimizer": {"beta2": NaN}}',
        '{"optimizer": {"name": "none"}}',
        '{"staleness": 2}',
        '{"codec_up": "zip"}',
        '{"contributors": "some"}',
        '{"codecs": "int4"}',
        '{"seed": -1}',
        '{"code": "import os"}',
        '{"model": {"path": "/etc/passwd"}}',
        "[]",
        "",
        "{",
    ],
)
def test_what_is_out_of_bounds_is_named(text: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_recipe(text)
    assert caught.value.fault.code == "E301"


@pytest.mark.parametrize(
    ("recipe", "reason", "value"),
    [
        (CausalLM(model=Model(width=66, heads=4)), "multiple of heads", "model.width"),
        (CausalLM(model=Model(family="llama", width=20, heads=4)), "even width", "model.width"),
        (CausalLM(model=Model(family="qwen3", width=20, heads=4)), "a Qwen model needs an even width", "model.width"),
        (CausalLM(model=Model(kv_heads=2)), "as many key heads", "model.kv_heads"),
        (CausalLM(model=Model(family="llama", kv_heads=3)), "not a multiple of key heads 3", "model.kv_heads"),
        (CausalLM(mix=(0.0, 0.0)), "add up to nothing", "mix"),
        (CausalLM(target_batch=3, micro_batch=4), "above the target batch", "micro_batch"),
        (CausalLM(optimizer=Optimizer(warmup_steps=11), target_steps=10), "warm-up", "optimizer.warmup_steps"),
        (CausalLM(model=Model(width=8192, layers=64, heads=64)), "parameters", "model.layers"),
    ],
)
def test_values_that_do_not_go_together_are_named(recipe: Recipe, reason: str, value: str) -> None:
    for refuse in (checked, lambda r: parse_recipe(encode_recipe(r))):
        with pytest.raises(OutOfBounds, match=reason) as caught:
            refuse(recipe)
        assert (caught.value.fault.code, caught.value.value) == ("E301", value)


def parsed(data: bytes | str) -> Any:
    """Return the parsed recipe, or the error code if it is invalid."""
    try:
        return parse_recipe(data)
    except Problem as problem:
        return problem.fault.code


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_rubbish_is_a_numbered_error(data: bytes | str) -> None:
    assert isinstance(parsed(data), Recipe) or parsed(data) == "E301"


@given(
    st.dictionaries(st.sampled_from(CausalLM.__struct_fields__), st.integers() | st.floats() | st.text() | st.none())
)
def test_any_value_is_within_bounds_or_refused(fields: dict[str, object]) -> None:
    recipe = parsed(msgspec.json.encode(fields))
    assert recipe == "E301" or parsed(encode_recipe(recipe)) == recipe


def test_gradients_and_averages_may_have_four_bits() -> None:
    recipe = parse_recipe('{"codec_up": "int4", "codec_down": "int4"}')
    assert (recipe.codec_up, recipe.codec_down) == ("int4", "int4")


def test_what_the_plan_may_use_in_the_place_of_a_codec() -> None:
    assert CausalLM().codecs_from("fp16") == ("fp16",)
    assert CausalLM(codecs="plan").codecs_from("fp32") == ("fp32", "fp16", "int8", "int4")
    assert CausalLM(codecs="plan").codecs_from("int8") == ("int8", "int4")


def test_parameters_of_a_small_model() -> None:
    assert CausalLM().parameters() == (2048 + 64 + 2) * 64 + 2 * (12 * 64 + 13) * 64


def test_a_recipe_that_is_not_known_here_is_named() -> None:
    with pytest.raises(Problem, match=r"'chess' is not one of .*causal_lm"):
        parse_recipe('{"objective": "chess"}')


def test_what_holds_for_every_kind() -> None:
    for name, kind in KINDS.items():
        usual = kind()
        assert checked(usual).objective == name
        assert parse_recipe(encode_recipe(usual)) == recipe_of(as_values(usual)) == usual
        assert all(parse_recipe(encode_recipe(preset)) == preset for preset in kind.presets.values())
        with pytest.raises(OutOfBounds, match="above the target batch"):
            checked(msgspec.structs.replace(usual, micro_batch=usual.target_batch + 1))


def test_two_kinds_have_two_names() -> None:
    class Other(Recipe, frozen=True, kw_only=True, tag="causal_lm"):
        pass

    with pytest.raises(ValueError, match="two recipes called causal_lm"):
        register(Other)
