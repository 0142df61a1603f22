"""The site in a language other than English: the words in Python code, in scripts and in errors."""

import json
import re

import pytest
from django.conf import settings
from django.core.validators import BaseValidator
from django.template import Context, Template
from django.test import Client
from django.utils import translation

from accounts.models import Person
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.card import CardFacts
from peer_agent.recipes import KINDS
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.finetune_lora import Base, FinetuneLoRA
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.masked_lm import Model as MaskedModel
from runs.models import Run, Snapshot
from runs.releases.card_facts import _with_digests, how_checked
from scripts.messages import DOMAINS, read, said_in
from tests.web.run_picture.test_status_sentence import TEO, picture
from tests.web.test_pseudo_locale import accented
from web.pages.runs.dataset_text import upload_facts
from web.pages.runs.forms.new_run import NewRunForm
from web.run_picture import counts
from web.run_picture.status_sentence import run_sentence, state_label
from web.words import loss_unit_of_page, material_in_words_of_page, summary_of_page, titled_in_words_of_page

__all__ = ["accented"]


def test_a_run_says_what_it_does_in_whole_sentences() -> None:
    with translation.override("bn"):
        assert run_sentence(picture("open"), [TEO]).startswith("1 জন মিলে 1টি মেশিন দিয়ে ধাপ ")
        assert state_label("waiting", []) == "স্বেচ্ছাসেবকের অপেক্ষায়"
        assert counts.samples(12_345) == "12,345টি নমুনা"


def test_templates_write_figures_as_scripts_do() -> None:
    template = Template("{% load humanize %}{{ number|intcomma }} {{ part|floatformat:2 }}")
    with translation.override("bn"):
        assert template.render(Context({"number": 1_234_567, "part": 0.5})) == "1,234,567 0.50"


def test_nobody_has_read_it_over_yet() -> None:
    comment = read(DOMAINS[0].catalogue("bn"), "bn").header_comment
    assert "Not yet reviewed by a native reader." in comment


def words_on(client: Client, language: str) -> dict[str, object] | None:
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = language
    found = re.search(
        r'<script type="application/json" id="words">(.*?)</script>', client.get("/login/").content.decode()
    )
    return json.loads(found[1]) if found else None


def test_scripts_get_their_words_only_in_other_languages(client: Client, db: None) -> None:
    assert words_on(client, "en") is None
    words = words_on(client, "bn")
    assert words is not None
    assert words["Copy"] == "কপি"
    assert all(isinstance(word, str) for word in words.values())
    assert "Wrong name or password." not in words  # only Python code uses this message


def test_who_may_not_log_in_is_told_so_in_their_language(client: Client, db: None) -> None:
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "bn"
    page = client.post("/login/", {"username": "Teo", "password": "wrong"}).content.decode()
    assert "নাম বা পাসওয়ার্ড ভুল।" in page


def test_a_badge_is_in_english_wherever_it_stands(client: Client, run: Run) -> None:
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "bn"
    assert "· step 0 of" in client.get(f"/runs/{run.slug}/badge.svg").content.decode()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('say("Copy")', ["Copy"]),
        ('x = say(\n  "a {b} \\"c\\"", { b })', ['a {b} "c"']),
        ('this.say("live"); hearsay("no"); say(place, "no")', []),
    ],
)
def test_what_scripts_say_is_found(script: str, found: list[object]) -> None:
    assert list(said_in(script)) == found


# Messages of code that does not know the reader's language


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no relay is connected", "কোনো রিলে সংযুক্ত নেই।"),
        ("waiting for 2 more volunteers", "আরও 2 জন স্বেচ্ছাসেবকের অপেক্ষা।"),
        ("waiting for Teo's PC to finish computing", "Teo's PC-এর গণনার অপেক্ষা।"),
        ("of another version", "Of another version।"),
    ],
)
def test_a_run_says_why_it_waits(reason: str, told: str) -> None:
    with translation.override("bn"):
        assert run_sentence(picture("open", waiting_for=reason), [TEO]).endswith(f" {told}")


def test_a_release_that_failed_is_told() -> None:
    with translation.override("bn"):
        said = run_sentence(picture("finishing", waiting_for=str(Fault.of("E312", reason="no memory"))), [])
    assert said.startswith("E312: মডেলটি প্রকাশ করা যায়নি (no memory)।")


def test_error_page_is_translated_and_programs_read_english(client: Client, db: None) -> None:
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "bn"
    page = client.get("/runs/nothing/").content.decode()
    assert "<h1>রান পাওয়া যায়নি</h1>" in page
    assert "রানের পাতায় ঠিকানাটি মিলিয়ে দেখুন।" in page
    assert client.get("/api/v1/runs/nothing").json()["title"] == "Run not found"


def test_an_error_is_told_in_a_page(client: Client, operator: Person) -> None:
    client.force_login(operator)
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "bn"
    page = client.get("/approve/?code=BBBBBBBB").content.decode()
    assert "<strong>কোড অজানা</strong> (E224). “BBBBBBBB” কোড দিয়ে" in page


def test_an_error_beside_a_field_is_told(run: Run) -> None:
    with translation.override("bn"):
        fault = Fault.of("E313")
        assert titled_in_words_of_page(fault).startswith("আমন্ত্রণ কাজ করে না (E313). আমন্ত্রণটি")


def test_what_people_bring_is_named(run: Run) -> None:
    with translation.override("bn"):
        material = material_in_words_of_page(run.parsed_recipe.material)
        assert (material.name, material.unit) == ("লেখা", "টোকেন")
        assert loss_unit_of_page(run.parsed_recipe) == ("টোকেন", "টোকেন")


def test_a_card_is_in_english_whoever_asks(run: Run) -> None:
    with translation.override("bn"):
        assert how_checked().startswith("এই প্রকাশের আগে")
        assert "whole log" in _with_digests(CardFacts(slug="a", title="A", steps=1, loss=1.0), run, Snapshot()).checked


OURS = [kind for name, kind in sorted(KINDS.items()) if name != "bigram"]
PRESETS = [preset for kind in OURS for preset in (kind(), *kind.presets.values())]
ONE_LAYER = [
    CausalLM(model=Model(layers=1)),
    *(MaskedLM(model=MaskedModel(family=family, layers=1)) for family in ("albert", "bert")),
    *(FinetuneLoRA(base=Base(layers=1, name=name)) for name in ("", "owner/name")),
]


@pytest.mark.parametrize("recipe", [*PRESETS, *ONE_LAYER])
def test_recipe_summary_is_in_the_language_of_the_page(recipe: Recipe, accented: None) -> None:
    with translation.override("en-xa"):
        said = summary_of_page(recipe)
    assert (said[0], said[-1], said.count("⟦")) == ("⟦", "⟧", 1)
    assert (" 1 layer of " in recipe.summary()) is (recipe in ONE_LAYER)
    figures = re.findall(r"\d[\d,]*", recipe.summary())
    assert re.findall(r"\d[\d,]*", said) == figures


def test_a_model_with_a_name_of_its_own_is_found_too() -> None:
    recipe = FinetuneLoRA(base=Base(name="owner/name {x} of 3 layers"))
    with translation.override("bn"):
        assert "owner/name {x} of 3 layers" in summary_of_page(recipe)


def test_form_messages_on_files_and_bounds_are_translated(volunteer: Person, accented: None) -> None:
    with translation.override("en-xa"):
        form = NewRunForm(usual=KINDS["causal_lm"](), upload_limit_mb=5)
        facts = upload_facts(volunteer, form)
        told = [facts["file_is_empty"], facts["file_is_too_long"], *map(str, said_of_bounds(form, "layers"))]
    assert len(told) == 4
    for each in told:
        assert re.fullmatch(r"⟦[^⟦]*⟧ \(E30[134]\)\. ⟦.*", each), each
    assert "SIZE" in facts["file_is_too_long"], "the page fills it in"


def said_of_bounds(form: NewRunForm, name: str) -> list[object]:
    return [each.message for each in form.fields[name].validators if isinstance(each, BaseValidator)]
