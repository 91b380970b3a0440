"""Predictions: kept outside the notebook, safe with several writers, and shown beside the measurement."""
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnesslab import predict as room
from harnesslab.predict import Revealed, compare, forget, keep, predict, predictions_file, read_number, recall, reveal, show_number


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("IN_TEST", raising=False)
    room._unwritten.clear()
    yield
    room._unwritten.clear()


def form(question="How many?", options=(), unit=""):
    pytest.importorskip("ipywidgets")
    return room._Form("t-id", question, list(options), unit)


def test_default_place_is_the_state_folder_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert predictions_file() == tmp_path / ".local" / "state" / "harnesslab" / "predictions.json"


def test_a_number_is_kept_changed_and_then_stays():
    shown = form(unit="tokens")
    shown.field.value = "13,500"  # as Return in the field does
    assert recall("t-id") == 13_500 and "Kept: 13,500 tokens" in shown.said.value
    shown.field.value = "about six"
    assert recall("t-id") == 13_500 and "not a number" in shown.said.value
    shown.field.value = "6 thousand"
    shown.button.click()
    assert recall("t-id") == 6_000
    reveal("t-id", 13_500)
    shown.field.value = "13500"
    assert recall("t-id") == 6_000 and "stays as it is" in shown.said.value
    again = form(unit="tokens")
    assert again.button.disabled and again.field.disabled and "You said 6,000 tokens" in again.said.value
    forget("t-id")
    assert recall("t-id") is None and not form().button.disabled


def test_an_option_is_kept_and_shown_again():
    shown = form(options=["at once", "never"])
    shown.button.click()
    assert recall("t-id") is None and "Choose one first" in shown.said.value
    shown.field.value = "never"
    assert recall("t-id") is None  # choosing is not keeping
    shown.button.click()
    assert recall("t-id") == "never" and form(options=["at once", "never"]).field.value == "never"
    assert form(options=["other", "options"]).field.value is None  # the lesson has changed since


def test_a_question_is_text_and_not_markup():
    shown = form(question="<script>alert(1)</script>", options=["<b>"])
    assert "<script>" not in shown.box.children[0].value
    keep("t-id", "<i>")
    assert "<i>" not in form().said.value


def test_without_a_notebook_the_question_is_printed(capsys):
    predict("t-id", "How many?", [1_000, 2_000], unit="tokens")
    assert capsys.readouterr().out == "Predict: How many?\n  ( ) 1,000 tokens\n  ( ) 2,000 tokens\n"
    reveal("t-id", 1_000, "tokens")
    assert "You kept no answer" in capsys.readouterr().out
    assert not predictions_file().exists()


def test_a_question_needs_an_id():
    with pytest.raises(ValueError, match="needs an id"):
        predict("", "How many?")


def test_revealing_under_test_settles_nothing(monkeypatch):
    keep("t-id", 5)
    monkeypatch.setenv("IN_TEST", "1")
    reveal("t-id", 6)
    assert keep("t-id", 7) == "" and recall("t-id") == 7


def test_many_kernels_write_and_nothing_is_lost():
    code = ("import sys; from harnesslab.predict import keep\n"
            "for n in range(15):\n    assert keep(f'{sys.argv[1]}-{n}', n) == ''")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(w)]) for w in range(4)]
    assert [w.wait(timeout=60) for w in writers] == [0] * 4
    entries = json.loads(predictions_file().read_text())
    assert len(entries) == 60 and sorted(p.name for p in predictions_file().parent.iterdir()) == ["predictions.json", "predictions.lock"]


@pytest.mark.parametrize("damage", ["", "[1, 2]", '{"t-id": 5}', "\0" * 50, '{"t-id": {"answer": 1', "[" * 100_000])
def test_a_damaged_file_counts_as_empty(damage):
    predictions_file().parent.mkdir(parents=True)
    predictions_file().write_text(damage)
    assert recall("t-id") is None
    reveal("t-id", 3)
    assert keep("t-id", 2) == "" and recall("t-id") == 2


def test_where_nothing_can_be_written_answers_last_for_the_session(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # also for root: a file is no folder
    assert "only as long as this session" in keep("t-id", 4) and recall("t-id") == 4
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert keep("other", 1) == "" and recall("t-id") == 4 and not room._unwritten  # written as soon as it can be


def test_what_is_revealed():
    assert compare(13_500, 13_500) == "That is what you said."
    assert compare(1_000, 1_050).startswith("Within ten per cent")
    assert compare(9, 3) == "Your number is 3 times the measured one." and compare(3, 9) == "The measured number is 3 times yours."
    assert compare(0, 5).startswith("You said something else") and compare(True, 1) == "That is what you said."
    page = Revealed("Why & how?", 3, 0, "steps")._repr_html_()
    assert "Why &amp; how?" in page and "3 steps" in page and "0 steps" in page
    assert "<span" not in Revealed("", 0, 0)._repr_html_()  # nothing to draw


@given(st.one_of(st.integers(-10**15, 10**15), st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9).map(lambda x: round(x, 4))))
def test_a_number_survives_being_shown(number):
    assert read_number(show_number(number)) == pytest.approx(number)


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_a_value_error(text):
    try:
        assert isinstance(read_number(text), int | float)
    except ValueError:
        pass
