"""An unknown name is answered with the known names near it, and with nothing where none is near."""

import pytest

from equipoise.storage.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("deepsek", " (did you mean 'deepseek'?)"),
        ("rate_of_updates", ""),
        ("update_rat", " (did you mean 'update_rate' or 'update_rates'?)"),
        ("", ""),
    ],
)
def test_near_names_are_suggested(word, answer):
    assert did_you_mean(word, ("deepseek", "update_rates", "update_rate", "sign")) == answer


def test_any_iterable_of_names_will_do():
    assert did_you_mean("sgn", iter({"sign": 1})) == " (did you mean 'sign'?)"
