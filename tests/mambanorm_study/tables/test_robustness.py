"""Corrupted test rows are what they say, the same for every arm; latencies are measured."""

import numpy as np
import pandas as pd
import pytest
import torch

from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run, save_run
from mambanorm_study.tables import robustness
from mambanorm_study.tables.robustness import (
    against_reference,
    corrupted,
    latency_table,
    recorded_corrupted,
    robustness_table,
    rotated,
)
from mambanorm_study.tasks import Split, load_task


@pytest.mark.parametrize("shape", [(2, 5, 5, 1), (2, 6, 6, 3)])
def test_a_quarter_turn_is_a_quarter_turn(shape):
    images = torch.randn(shape)
    found = rotated(images, torch.tensor([90.0, -90.0]))
    torch.testing.assert_close(found[0], torch.rot90(images[0], 1, (0, 1)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], torch.rot90(images[1], -1, (0, 1)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotated(images, torch.zeros(2)), images, rtol=1e-5, atol=1e-5)


def test_noise_has_its_strength_and_is_the_same_for_every_arm():
    split = load_task("digits", "smoke", 0).test
    noisy = corrupted(split, "noise", 0.5, seed=3)
    assert float((noisy.inputs - split.inputs).std()) == pytest.approx(
        0.5 * float(split.inputs.std()), rel=0.05
    )
    assert torch.equal(noisy.inputs, corrupted(split, "noise", 0.5, seed=3).inputs)
    assert not torch.equal(noisy.inputs, corrupted(split, "noise", 0.5, seed=4).inputs)
    assert torch.equal(noisy.labels, split.labels)


def test_bytes_are_corrupted_as_the_numbers_that_a_model_sees():
    split = Split(torch.randint(0, 256, (3, 4, 4, 1), dtype=torch.uint8), torch.arange(3))
    noisy = corrupted(split, "noise", 0.1)
    assert noisy.inputs.dtype == torch.float32
    assert float((noisy.inputs - split.batch(slice(None))[0]).abs().max()) < 0.5


def test_a_table_has_every_severity_and_the_run_itself_at_zero(tmp_path, monkeypatch):
    configs = [
        base_config("digits_images", "smoke", arm=arm, seed=s)
        for arm in ("AutoNorm", "FrozenLN")
        for s in (0, 1)
    ]
    configs = [config.but(n_heads=2, steps=20, lr=1e-2) for config in configs]
    accuracies = {}
    for config in configs:
        result = train(config)
        save_run(result, tmp_path)
        accuracies[config.run_id] = result.test_accuracy
    monkeypatch.setattr(robustness, "CORRUPTIONS", {"noise": (0.5, 50.0), "rotation": (45.0,)})
    table = robustness_table([find_run(config, tmp_path) for config in configs])
    assert len(table) == 4 * (3 + 2)
    clean = table[table.severity == 0].groupby("run_id").accuracy.agg(["min", "max"])
    assert clean["min"].to_dict() == clean["max"].to_dict() == pytest.approx(accuracies)
    worst = table[table.severity == 50.0]
    assert worst.accuracy.mean() < clean["min"].mean()
    measured = against_reference(table).set_index(["kind", "arm"])
    by_hand = table[
        (table.arm == "AutoNorm") & (table.kind == "noise") & (table.severity > 0)
    ].accuracy.mean()
    clean_mean = np.mean(
        [accuracies[config.run_id] for config in configs if config.arm == "AutoNorm"]
    )
    assert measured.corrupted["noise", "AutoNorm"] == pytest.approx(100 * by_hand)
    assert measured.change["noise", "AutoNorm"] == pytest.approx(100 * (by_hand - clean_mean))
    assert measured.accuracy_gap["rotation", "AutoNorm"].index.tolist() == [0, 1]
    kept = table[table.severity > 0].pivot_table(index="run_id", columns="kind", values="accuracy")
    runs = table.drop_duplicates("run_id").set_index("run_id", drop=False)[
        ["run_id", "task", "arm", "seed"]
    ]
    again = against_reference(
        recorded_corrupted(
            runs.assign(test_accuracy=pd.Series(accuracies), **kept).reset_index(drop=True)
        )
    )
    pd.testing.assert_frame_equal(again.iloc[:, :5], against_reference(table).iloc[:, :5])
    assert recorded_corrupted(runs.assign(test_accuracy=0.5)).empty


def test_latency_is_measured_for_one_row_and_for_a_batch():
    configs = [
        base_config("digits_images", "smoke", arm=arm, n_heads=2)
        for arm in ("AutoNorm", "FrozenLN")
    ]
    table = latency_table(configs, rows=(1, 32))
    assert table[["arm", "rows"]].to_numpy().tolist() == [
        [a, n] for a in ("AutoNorm", "FrozenLN") for n in (1, 32)
    ]
    assert (table.low > 0).all()
    assert (table.low <= table.ms).all()
    assert np.isfinite(table.high).all()


def test_without_the_reference_no_gap_is_told():
    """A study may have had no time to train the reader's own FrozenLN."""
    rows = [
        dict(
            run_id="a", task="t", arm="AutoNorm", seed=0, kind="noise", severity=s, accuracy=0.9 - s
        )
        for s in (0, 0.5)
    ]
    (row,) = robustness.against_reference(pd.DataFrame(rows)).itertuples()
    assert (row.arm, len(row.accuracy_gap), len(row.change_gap)) == ("AutoNorm", 0, 0)
    assert row.corrupted == pytest.approx(40)
