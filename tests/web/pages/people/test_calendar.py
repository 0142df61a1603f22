"""Half a year of days, in weeks from Monday on."""

from accounts.days import date_of
from web.pages.people.calendar import LEVELS, WEEKS, squares, summary

TODAY = 20_421  # 29 November 2025, a Saturday


def test_it_ends_today_and_begins_on_a_monday() -> None:
    shown = squares({}, TODAY)
    assert date_of(TODAY).isoformat() == "2025-11-29"
    assert (shown[-1].column, shown[-1].row) == (WEEKS - 1, 5), "a Saturday"
    assert (shown[0].column, shown[0].row) == (0, 0)
    assert len(shown) == 7 * (WEEKS - 1) + 6
    assert len({(each.column, each.row) for each in shown}) == len(shown)
    assert all(each.level == 0 for each in shown)


def test_darker_where_more_was_given() -> None:
    by_day = {TODAY: 100, TODAY - 1: 1, TODAY - 2: 50, TODAY - 3: 51, TODAY - 1000: 10**9}
    levels = {each.words: each.level for each in squares(by_day, TODAY)[-4:]}
    assert levels == {
        "29 November 2025: 100 samples": LEVELS,
        "28 November 2025: 1 sample": 1,
        "27 November 2025: 50 samples": 2,
        "26 November 2025: 51 samples": 3,
    }


def test_a_sentence_says_it_too() -> None:
    by_day = {TODAY: 1, TODAY - 180: 5, TODAY - 181: 5, TODAY + 1: 7}
    assert summary(by_day, TODAY) == "Active on 2 of the last 181 days (UTC)."
