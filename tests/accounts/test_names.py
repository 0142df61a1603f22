import unicodedata

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from accounts import deactivation, external_logins, names, services
from accounts.models import FORMER, Person
from runs.departure import without_name

PASSWORD = "correct horse battery staple"

ALLOWED = (
    "Ann",
    "রহিম",
    "আলী",
    "ক্ষুদ্র",
    "रमेश",
    "علی‌رضا",
    "רחל",
    "Nguyễn",
    "山田taro",
    "나경",
    "Иван",
    "রহিম১২",
    "a.b-c_9",
)
REFUSED = (
    ("b", "2 to 30"),
    ("x" * 31, "2 to 30"),
    ("_x", "begin with"),
    ("-x", "begin with"),
    ("a b", "letters"),
    ("a\u200db", "letters"),  # a joiner between Latin letters is invisible
    ("রহ\u200d", "letters"),
    ("e" + "\u0336\u0330\u0320\u0331\u0332", "letters"),  # five marks on one letter
    ("раypal", "one script"),  # Cyrillic р and а
    ("rahim১", "one script"),
    ("a१", "one script"),
    ("Ελeni", "one script"),
)


@pytest.mark.parametrize("name", ALLOWED)
def test_names_in_any_one_script_are_valid(name: str) -> None:
    names.validate_name(name)
    assert not names.is_reserved(name, FORMER)


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_other_names_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        names.validate_name(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("BOB", "ВОВ"),  # Cyrillic
        ("ANN", "ΑΝΝ"),  # Greek
        ("paul1", "PauI1"),
        ("modern", "modem"),
        ("আলী", "অালী"),
        ("علی‌رضا", "علیرضا"),
        ("tim0", "timO"),
    ],
)
def test_names_that_look_alike_have_one_look(one: str, other: str) -> None:
    assert names.look_of(one) == names.look_of(other)


@pytest.mark.parametrize(
    ("one", "other"), [("ann", "anna"), ("রহিম", "রহিমা"), ("rahim", "karim"), ("team-2", "team-3")]
)
def test_different_names_have_different_looks(one: str, other: str) -> None:
    assert names.look_of(one) != names.look_of(other)


@given(st.text(max_size=12))
def test_the_look_of_a_look_is_itself(text: str) -> None:
    assert names.look_of(names.look_of(text)) == names.look_of(text)


@pytest.mark.parametrize(
    "name", ["admin", "Admin", "ad-min", "rnanyhands", "r0ot", "ROOT_", "former-volunteer-7", "ｆormer-volunteer-7"]
)
@pytest.mark.django_db
def test_names_of_the_site_are_refused_however_they_are_written(name: str) -> None:
    with pytest.raises(ValidationError, match="keeps that name"):
        services.sign_up(username=name, password=PASSWORD)
    with pytest.raises(ValidationError, match="keeps that name"):
        external_logins.join_from_outside(provider="github", uid="7", username=name)
    assert not Person.objects.exists()


@pytest.mark.django_db
def test_a_name_that_looks_like_another_is_refused_with_that_name() -> None:
    services.sign_up(username="BOB", password=PASSWORD)
    with pytest.raises(ValidationError, match="looks like BOB"):
        services.sign_up(username="ВОВ", password=PASSWORD)  # Cyrillic
    with pytest.raises(ValidationError, match="taken"):
        services.sign_up(username="bob", password=PASSWORD)
    assert Person.objects.count() == 1


@pytest.mark.django_db
def test_a_deleted_account_gives_its_look_back() -> None:
    deactivation.forget_person(person=services.sign_up(username="BOB", password=PASSWORD))
    assert services.sign_up(username="ВОВ", password=PASSWORD).username == "ВОВ"


def test_a_name_that_is_part_of_a_longer_one_stays_in_a_line() -> None:
    assert without_name("রহিম invited রহ.", "রহ") == "রহিম invited a former volunteer."


def test_wide_letters_are_stored_as_ordinary_ones() -> None:
    assert unicodedata.normalize("NFKC", "ｂｏｂ") == Person.normalize_username("ｂｏｂ") == "bob"
