"""The reader's guesses are kept, and the answer shows them beside the outcomes."""

import json

from mambanorm_study.widgets import Guess

QUESTIONS = {"Which is best?": ["BN", "GN"], "By how much?": ["less than 1", "1 or more"]}


def test_a_guess_is_kept_and_scored(tmp_path):
    guess = Guess("03", QUESTIONS, tmp_path)
    assert guess.guesses == {}
    assert "no guess" in guess.score(["GN", "1 or more"])
    assert "right" not in guess.score(["GN", "1 or more"])
    guess.menus["Which is best?"].value = "GN"
    again = Guess("03", QUESTIONS, tmp_path)
    assert again.guesses == {"Which is best?": "GN"}
    again.menus["By how much?"].value = "less than 1"
    text = again.score(["GN", "1 or more"])
    assert "**GN** (you guessed GN ✓)" in text
    assert "**1 or more** (you guessed less than 1)" in text
    assert text.endswith("1 of 2 right.")


def test_other_notebooks_and_answers_that_are_gone_do_not_disturb(tmp_path):
    (tmp_path / ".guesses").mkdir()
    (tmp_path / ".guesses" / "03.json").write_text(json.dumps({"Which is best?": "XN"}))
    assert Guess("03", QUESTIONS, tmp_path).guesses == {}
    assert Guess("04", QUESTIONS, tmp_path).guesses == {}


def test_a_static_page_shows_the_questions(tmp_path):
    bundle = Guess("03", QUESTIONS, tmp_path)._repr_mimebundle_()
    assert bundle["text/markdown"] == (
        "1. Which is best? *BN · GN*\n1. By how much? *less than 1 · 1 or more*"
    )
