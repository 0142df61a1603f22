"""The recipe form and the estimate beside it, for every preset."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.http import QueryDict
from django.test import Client
from msgspec.structs import replace

from accounts.models import Person
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, checked
from peer_agent.recipes import KINDS
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.masked_lm import MaskedLM
from tests.web.browsing import as_, page
from web.pages.runs.forms import recipe
from web.pages.runs.forms.new_run import OPEN_DATASETS, NewRunForm, form_field
from web.pages.runs.forms.recipe import (
    COMMON,
    DETAILS,
    LAPTOPS,
    ROUND_S,
    UPLINKS,
    estimate_of,
    fields_of,
    recipe_from,
    recipe_in,
    rows_of,
    seconds,
    values_of,
)
from web.strokes import sketch

ADDRESS = "/runs/new/estimate/"
PRESETS = [(name, recipe) for kind in KINDS.values() for name, recipe in {"": kind(), **kind.presets}.items()]
NOT_CHOSEN = {"mix"}  # the form shows the sources beside their texts


def said(recipe: Recipe) -> dict[str, str]:
    return {"objective": recipe.objective, **{name: str(value) for name, value in values_of(recipe).items()}}


@pytest.mark.parametrize(("name", "recipe"), PRESETS, ids=[f"{r.objective} {n}" for n, r in PRESETS])
def test_a_form_says_what_its_recipe_takes(name: str, recipe: Recipe) -> None:
    assert recipe_in(said(recipe)) == recipe
    rows = dict(rows_of(estimate_of(recipe)))
    assert rows["Parameters"] == f"about {recipe.parameters():,}"
    assert list(rows) == list(dict.fromkeys(rows))
    assert all(rows.values())


def test_bytes_and_seconds_follow_the_codecs() -> None:
    recipe = CausalLM(model=Model(layers=12, width=768, heads=12, context=512), vocab=32_000)
    whole = estimate_of(replace(recipe, codec_up="fp32", codec_down="fp32"))
    less = estimate_of(replace(recipe, codec_up="int8", codec_down="fp16"))
    assert whole.up == whole.down == encoded_size("fp32", recipe.parameters())
    assert (less.up, less.down) == tuple(encoded_size(codec, recipe.parameters()) for codec in ("int8", "fp16"))
    assert whole.snapshot == 12 * recipe.parameters()
    assert list(whole.seconds) == list(UPLINKS)
    assert whole.seconds[10] == pytest.approx(10 * whole.seconds[100])
    assert less.seconds[10] == pytest.approx(8 * less.down / 10e6), "what comes down takes longer than what goes up"


def test_a_vector_of_the_benchmarks_takes_about_as_long_as_there() -> None:
    """`homes-rtt` in docs/benchmarks.md: 10 million parameters in fp16 took 17.7 s over uplinks of 10 to 30 Mb/s.

    The slowest uplink sets the pace, and no household there reserves any part of its uplink.
    """
    moved = encoded_size("fp16", 10_000_000)
    assert seconds(moved, moved, 10) * 0.8 == pytest.approx(17.7, rel=0.15)


def test_a_crowd_computes_and_averages() -> None:
    """ALBERT-large as in the paper: 24 layers of width 1,024, 512 tokens and 4,096 samples per step."""
    recipe = MaskedLM.presets["sahajBERT, paper"]
    estimate = estimate_of(recipe)
    operations = recipe.operations(4096)
    assert operations == pytest.approx(4.4e15, rel=0.1), "6 for each of 302 million weights and a token, and attention"
    averaging = estimate.seconds[30]
    assert estimate.crowds["gaming PCs"] == pytest.approx(operations / 1e14 + averaging + ROUND_S)
    overlapped = estimate_of(replace(recipe, staleness=1))
    assert overlapped.crowds["gaming PCs"] == pytest.approx(max(operations / 1e14, averaging) + ROUND_S)
    assert estimate_of(KINDS["image_ssl"]()).crowds == {}, "nobody has counted them"


@pytest.mark.parametrize(
    ("spent", "steps", "words"),
    [
        (0.5, None, "less than a second per step"),
        (30.0, None, "30 s per step"),
        (30.0, 3, "30 s per step; 3 steps in less than two minutes"),
        (30.0, 120, "30 s per step; 120 steps in about 60 minutes"),
        (30.0, 1200, "30 s per step; 1,200 steps in about 10 hours"),
        (600.0, 180, "10 min per step; 180 steps in about a day"),
        (600.0, 240, "10 min per step; 240 steps in about 2 days"),
        (600.0, 1000, "10 min per step; 1,000 steps in about 7 days"),
    ],
)
def test_a_crowd_is_told_in_days_where_steps_are_stated(spent: float, steps: int | None, words: str) -> None:
    estimate = estimate_of(CausalLM())._replace(crowds={"laptops": spent})
    assert dict(rows_of(estimate, steps))["20 laptops"] == words


@pytest.mark.parametrize(
    "changes",
    [{"width": "65"}, {"width": "wide"}, {"width": "1e3"}, {"layers": "-1"}, {"objective": "none"}, {"optimizer": "x"}],
)
def test_values_that_do_not_go_together_have_none(volunteer: Person, changes: dict[str, str]) -> None:
    values = said(CausalLM()) | changes
    assert recipe_in(values) is None
    answer = as_(volunteer).get(ADDRESS, values)
    assert answer.status_code == 200
    assert "Fix the highlighted fields" in page(answer)


def test_fields_that_are_empty_have_their_defaults() -> None:
    assert recipe_in({"objective": "causal_lm", "width": " "}) == CausalLM()


def test_it_is_for_people_with_an_account(volunteer: Person) -> None:
    assert Client().get(ADDRESS).status_code == 302
    assert as_(volunteer).post(ADDRESS).status_code == 405
    answer = page(as_(volunteer).get(ADDRESS, said(CausalLM())))
    assert f"about {CausalLM().parameters():,}" in answer
    assert "1,000 steps in" in answer
    assert "steps in" not in page(as_(volunteer).get(ADDRESS, said(CausalLM()) | {"target_steps": ""}))


@pytest.mark.parametrize("width", ["128", "65"])
def test_the_form_itself_has_it_without_a_script(volunteer: Person, width: str) -> None:
    client = as_(volunteer)
    assert "Traffic per machine and step" in page(client.get("/runs/new/")).replace("&#x27;", "'")
    sent = page(client.post("/runs/new/", said(CausalLM()) | {"width": width}))
    wider = f"about {CausalLM(model=Model(width=128)).parameters():,}"
    assert (wider in sent) == (width == "128")
    assert ("Fix the highlighted fields" in sent) == (width == "65")


def values(kind: Any, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        is_nested = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        yield from values(field.type, f"{field.name}.") if is_nested else [f"{path}{field.name}"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_value_has_its_words(kind: type[Recipe]) -> None:
    worded = {".".join(field.path) for field in fields_of(kind)}
    chosen = {value for value in values(kind) if value.partition(".")[0] not in kind.from_data}
    assert chosen - worded - NOT_CHOSEN == set()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_unchanged_form_gives_the_recipe_it_began_with(kind: type[Recipe]) -> None:
    for preset in (kind(), *kind.presets.values()):
        assert recipe_from(kind, values_of(preset)) == preset


def test_a_choice_among_numbers_is_a_number() -> None:
    field = next(field for field in fields_of(CausalLM) if field.name == "staleness")
    chosen = [form_field(field, 0).clean(choice) for choice, _ in field.choices]
    assert [recipe_from(CausalLM, {"staleness": value}).staleness for value in (*chosen, "", None)] == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_choice_has_its_words(kind: type[Recipe]) -> None:
    for words in (*kind.words, *COMMON[DETAILS]):
        values = {value for value, _ in recipe._described(kind, "", words._replace(choices=())).choices}
        assert not words.choices or set(dict(words.choices)) == values


def test_what_is_none_of_the_choices_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        recipe_from(CausalLM, {"staleness": "2"})
    assert caught.value.fault.code == "E301"


@pytest.mark.parametrize(
    ("name", "laptops", "shortest_h", "longest_h"),
    [
        ("Minutes on two laptops", 2, 0.02, 0.5),
        ("An evening with ten laptops", 10, 2, 5),
        ("A week with fifty laptops", 50, 4 * 24, 9 * 24),
        ("A month with two hundred laptops", 200, 22 * 24, 40 * 24),
    ],
)
def test_a_size_takes_the_time_it_is_named_after(
    name: str, laptops: int, shortest_h: float, longest_h: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "CROWD", laptops)
    size = checked(CausalLM.presets[name])
    assert isinstance(size, CausalLM)
    hours = estimate_of(size).crowds["laptops"] * size.target_steps / 3600
    assert shortest_h < hours < longest_h
    seen = size.target_steps * size.target_batch * size.model.context / size.parameters()
    assert seen > 2, "tokens per parameter"


SIZES = list(CausalLM.presets)
EVENING = SIZES[1]


def sized(before: str, chosen: str, **typed: str) -> NewRunForm:
    """Return the form as a browser without scripts sends it: shown with one size, then another chosen."""
    shown = NewRunForm(usual=CausalLM(), upload_limit_mb=5)._values_of_size(before)
    assert shown is not None
    data = QueryDict(mutable=True)
    data.update({"objective": "causal_lm", "title": "T", **shown, **typed, "shown_size": before, "size": chosen})
    form = NewRunForm(data, usual=CausalLM(), upload_limit_mb=5)
    form.is_valid()
    return form


@pytest.mark.parametrize("chosen", SIZES)
@pytest.mark.parametrize("before", SIZES)
def test_a_chosen_size_fills_in_the_recipe(before: str, chosen: str) -> None:
    form = sized(before, chosen)
    assert form.recipe() == CausalLM.presets[chosen]
    assert form.automatic_steps == (chosen == SIZES[0])
    assert [size.name for size in form.sizes if size.is_chosen] == [chosen]
    assert form.data["shown_size"] == chosen


def test_what_was_typed_wins_over_the_chosen_size() -> None:
    recipe = sized(SIZES[0], EVENING, width="96", target_steps="90").recipe()
    assert isinstance(recipe, CausalLM)
    assert (recipe.model.width, recipe.target_steps, recipe.model.layers) == (96, 90, 6)
    assert sized(EVENING, EVENING, target_steps="").automatic_steps


@pytest.mark.parametrize("said", ["", "&shown_size=huge&width="])
def test_a_size_alone_is_enough(said: str) -> None:
    form = NewRunForm(QueryDict(f"size={EVENING}{said}"), usual=CausalLM(), upload_limit_mb=5)
    form.is_valid()
    assert form.recipe() == CausalLM.presets[EVENING]


def test_an_unknown_size_changes_nothing() -> None:
    form = sized(SIZES[0], "huge")
    assert form.recipe() == CausalLM()


def test_a_size_says_what_the_estimate_says(volunteer: Person) -> None:
    cards = {size.name: size for size in NewRunForm(usual=CausalLM(), upload_limit_mb=5).sizes}
    assert cards[EVENING].quality == "Writes simple sentences."
    assert cards[EVENING].facts[:2] == ["about 3 hours", "13.9 million parameters"]
    assert cards[SIZES[0]].facts[0].endswith("for 1,000 steps"), "how many there are depends on the data"
    answer = page(as_(volunteer).get(ADDRESS, said(CausalLM.presets[EVENING]) | {"size": EVENING}))
    assert "About 3 hours with 10 laptops" in answer
    assert "<dt>10 laptops</dt>" in answer


def test_sizes_named_after_laptops_are_estimated_with_them() -> None:
    assert set(LAPTOPS) == set(CausalLM.presets)


def test_each_kind_has_a_drawing_of_its_own() -> None:
    ours = [name for name, kind in KINDS.items() if kind.__module__.startswith("peer_agent.")]
    assert len({sketch(name) for name in ours}) == len(ours)


def test_values_that_are_no_size_can_stay() -> None:
    own = CausalLM(model=Model(layers=3))
    first, *others = NewRunForm(usual=own, upload_limit_mb=5).sizes
    assert (first.name, first.is_chosen, any(size.is_chosen for size in others)) == ("", True, False)
    assert NewRunForm(usual=KINDS["finetune_lora"](), upload_limit_mb=5).sizes == []


def test_a_hint_stands_only_where_it_holds() -> None:
    for kind, hints in (("causal_lm", True), ("image_classification", False)):
        form = NewRunForm(usual=KINDS[kind](), upload_limit_mb=5)
        assert ("LAMB" in str(form.fields["optimizer"].help_text)) == hints
        assert not form.fields["epsilon"].help_text


def test_no_choice_is_a_name_from_the_code() -> None:
    raw = {
        value
        for kind in KINDS.values()
        for field in fields_of(kind)
        for value, shown in field.choices
        if value == shown
    }
    assert raw <= {"unigram", "mixed"}, "which are words"


def test_an_open_dataset_is_filled_in_without_a_script(volunteer: Person) -> None:
    client = as_(volunteer)
    name = OPEN_DATASETS[0].name
    assert f'href="?recipe=causal_lm&amp;hub={name}#id_hub"' in page(client.get("/runs/new/"))
    assert f'name="hub" value="{name}"' in page(client.get("/runs/new/", {"recipe": "causal_lm", "hub": name}))
    assert "open-datasets" not in page(client.get("/runs/new/?recipe=image_classification"))
