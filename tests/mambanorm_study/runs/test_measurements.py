"""Small trainings are measured once: here, or by those who recorded the results."""

import pandas as pd
import pytest
import torch

import mambanorm_study as study
from mambanorm_study import advice
from mambanorm_study.advice import experiments
from mambanorm_study.lessons import elements, gan, outputs, trained, why_norms
from mambanorm_study.runs import measurements
from mambanorm_study.runs.measurements import digest_of, load_or_measure, record


@pytest.fixture
def trains_nothing(monkeypatch, tmp_path):
    """A store without measurements, and a process that must not measure."""
    monkeypatch.setattr(measurements, "exactly_threads", lambda _: pytest.fail("it measures"))
    return tmp_path


def of_lessons(runs_dir):
    """Yield the frames of notebooks 01, 02, 07 and 11."""
    yield trained.batch_norm_curves("quick", runs_dir=runs_dir)
    yield trained.parts_of_a_block("quick", runs_dir=runs_dir)
    yield outputs.outputs_by_depth(runs_dir=runs_dir)
    yield elements.elements_by_depth("quick", runs_dir=runs_dir)
    yield why_norms.loss_ranges("quick", runs_dir=runs_dir)
    yield why_norms.normalizer_free_curves("quick", runs_dir=runs_dir)
    yield gan.gan_runs("quick", runs_dir=runs_dir)


def of_advice(runs_dir):
    """Yield the frames of notebook 11."""
    for name in experiments.EXPERIMENTS:
        yield advice.measure(name, "quick", runs_dir=runs_dir)


@pytest.mark.parametrize("measured", [of_lessons, of_advice])
def test_a_reader_waits_for_no_training_that_is_recorded(measured, trains_nothing):
    """If this fails, the code that measures has changed. Record again: execute notebooks 01, 02,
    07, 11 and 14 with an empty run store and the source "trained", then `python -m
    mambanorm_study.runs.measurements STORE`.
    """
    for frame in measured(trains_nothing):
        assert frame.seed.nunique() >= 3
    assert not list(trains_nothing.iterdir())


def test_recorded_measurements_are_what_the_code_gives(tmp_path, monkeypatch):
    recorded = advice.measure("style", "quick", [0], tmp_path)
    curves = trained.parts_of_a_block("quick", [0], runs_dir=tmp_path)
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    pd.testing.assert_frame_equal(
        advice.measure("style", "quick", [0], tmp_path), recorded, rtol=0.05
    )
    again = trained.parts_of_a_block("quick", [0], runs_dir=tmp_path)
    # on another processor sums are added in another order, and trained models differ a little
    assert list(again.columns) == list(curves.columns)
    assert (again.test_accuracy - curves.test_accuracy).abs().mean() < 0.03


def test_what_is_recorded_comes_back_as_it_was_measured(tmp_path, monkeypatch):
    rows = [
        dict(name="a", loss=float("nan"), losses=[1.0, 0.1]),
        dict(name="b", loss=1 / 3, losses=[]),
    ]
    measure = lambda seed: rows
    frame = load_or_measure(".there", "a-b", measure, (0, 7), "0123456789", tmp_path / "store")
    record(tmp_path / "store", tmp_path / "recorded.parquet")
    measurements._recorded_rows.cache_clear()
    monkeypatch.setattr(measurements, "RECORDED", tmp_path / "recorded.parquet")
    monkeypatch.setattr(measurements, "exactly_threads", lambda _: pytest.fail("it measures"))
    again = load_or_measure(".there", "a-b", measure, (0, 7), "0123456789", tmp_path / "new")
    measurements._recorded_rows.cache_clear()
    assert again.drop(columns="losses").equals(frame.drop(columns="losses"))
    assert again.losses.tolist() == [list(value) for value in frame.losses]
    recorded_file = pd.read_parquet(tmp_path / "recorded.parquet")
    assert {"versions", "machine", "git_commit"} < set(recorded_file.columns)


def test_texts_about_code_do_not_count(tmp_path):
    one, other, third = (tmp_path / f"{name}.py" for name in "abc")
    one.write_text('"""A module."""\n\ndef f():\n    """Return 1."""\n    # why\n    return 1\n')
    other.write_text('"""Two\nlines."""\ndef f():\n    return 1\n')
    third.write_text('"""Two\nlines."""\ndef f():\n    return 2\n')
    assert digest_of(one) == digest_of(other) != digest_of(third)
    assert digest_of(one) != digest_of(one, "setting")


def test_measurements_are_stored_until_the_code_changes(tmp_path):
    measured_seeds, code = [], tmp_path / "lesson.py"
    code.write_text("x = 1")

    def one_seed(seed):
        measured_seeds.append(seed)
        return [dict(value=float(torch.rand(())), threads=torch.get_num_threads())]

    def measured():
        return load_or_measure(".there", "a name", one_seed, (0, 1), digest_of(code), tmp_path)

    state, frame = torch.get_rng_state(), measured()
    assert torch.equal(torch.get_rng_state(), state)
    assert frame.equals(measured())
    assert measured_seeds == [0, 1]
    assert (set(frame.threads), frame.seed.tolist(), frame.value.nunique()) == ({1}, [0, 1], 2)
    code.write_text("x = 2")
    assert measured().equals(frame)  # measured again, on the same seeds
    assert measured_seeds == [0, 1] * 2
    assert study.load_runs(tmp_path).empty
