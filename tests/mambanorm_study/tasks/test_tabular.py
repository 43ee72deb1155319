"""Tables with real-valued targets: read as published, scaled by the training rows, scored in the
targets' units.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mambanorm_study.runs.evaluation import accuracy, errors
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run, load_runs, save_run
from mambanorm_study.tasks import BadData, Split, TaskData, load_task
from mambanorm_study.tasks.tabular import SLOTS, make_table_data

TARGETS = ("load, kWh/m²", "price, $")


FILES = {"energy/ENB2012_data.xlsx": "enb2012/ENB2012_data.xlsx",
         "california_housing/housing.csv": "california_housing/housing_ageron.csv"}  # fmt: skip


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Return the folder with real files, and link them into a new data folder."""
    folder = os.environ.get("MAMBANORM_REAL_DATA")
    if not folder:
        pytest.skip("MAMBANORM_REAL_DATA is unset: it names the folder with real files")
    for name, file in FILES.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        (tmp_path / "data" / name).symlink_to(Path(folder) / file)
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path / "data"))
    return Path(folder)


def values(split: Split) -> np.ndarray:
    """Return the features of a split from their slots."""
    place = range(split.inputs.shape[1])
    return split.inputs[:, place, place].numpy()


def made(n=50, features=3, targets=2, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(rng.normal(5, 2, (n, features)), columns=[f"x{i}" for i in range(features)])
    y = pd.DataFrame(rng.normal(30, 10, (n, targets)), columns=[f"y{i}" for i in range(targets)])
    return x, y


# as published


def test_energy_has_768_buildings_although_its_file_has_blank_rows_behind_them(real):
    from openpyxl import load_workbook

    sheet = load_workbook(real / "enb2012/ENB2012_data.xlsx", read_only=True).active
    assert sheet.max_row > 769, "a file without blank rows would test nothing"
    data = load_task("energy", "quick", 0)
    assert [len(split) for split in (data.train, data.val, data.test)] == [460, 154, 154]
    table = pd.read_csv(real / "enb2012/ENB2012_data.csv").dropna(how="all")
    found = torch.cat([split.labels for split in (data.train, data.val, data.test)]).numpy()
    np.testing.assert_allclose(sorted(found[:, 0]), sorted(table.Y1), rtol=1e-6)
    assert data.targets == ("heating load, kWh/m²", "cooling load, kWh/m²")


def test_a_missing_number_of_bedrooms_becomes_the_training_rows_median_and_is_told(real):
    table = pd.read_csv(real / "california_housing/housing_ageron.csv")
    assert int(table.total_bedrooms.isna().sum()) == 207
    data = load_task("california_housing", "lab", 0)
    splits = (data.train, data.val, data.test)
    assert sum(map(len, splits)) == 20_640
    flag = table.columns.get_loc("median_house_value")  # the first column behind the eight numbers
    told = [values(split)[:, flag] > 0 for split in splits]
    assert sum(int(rows.sum()) for rows in told) == 207
    bedrooms = [values(split)[rows, 4] for split, rows in zip(splits, told, strict=True)]
    assert len({round(float(value), 5) for part in bedrooms for value in part}) == 1
    assert load_task("california_housing", "quick", 0).train.inputs.shape == (3_600, 14, 2 * SLOTS)


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=r"energy.*mambanorm tasks --prepare energy"):
        load_task("energy", "quick", 3)
    (tmp_path / "energy").mkdir()
    (tmp_path / "energy/ENB2012_data.xlsx").write_bytes(b"altered")
    with pytest.raises(ValueError, match="ENB2012_data.xlsx"):
        load_task("energy", "quick", 4)


# what a model sees


def test_a_feature_is_a_position_with_a_slot_of_its_own_and_scaled_by_the_training_rows():
    x, y = made()
    data = make_table_data(x, y, TARGETS, "quick", 3)
    order = np.random.default_rng(3).permutation(50)
    test, val, train_rows = order[10:20], order[:10], order[20:]
    mean, std = x.to_numpy()[train_rows].mean(0), x.to_numpy()[train_rows].std(0)
    for split, rows in ((data.train, train_rows), (data.val, val), (data.test, test)):
        np.testing.assert_allclose(
            values(split), (x.to_numpy()[rows] - mean) / std, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(split.labels, y.to_numpy()[rows], rtol=1e-6)
        other = split.inputs.clone()
        other[:, range(3), range(3)] = 0
        assert torch.equal(
            other.nonzero()[:, 1:].unique(dim=0), torch.tensor([[j, SLOTS + j] for j in range(3)])
        )
    np.testing.assert_allclose(data.units.mean, y.to_numpy()[train_rows].mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        data.units.restore(data.units.standardize(data.test.labels)), data.test.labels, rtol=1e-5
    )
    assert data.chance == 0.0


# scores


@pytest.mark.parametrize("arm", ["RMSN>SSM>None", "AutoNorm"])
def test_a_regression_is_trained_stored_and_read_as_any_other_run(tmp_path, arm):
    config = base_config("diabetes", "smoke", arm=arm, n_heads=2, steps=30, lr=1e-2, eval_every=5)
    save_run(train(config), tmp_path)
    run, row = find_run(config, tmp_path), load_runs(tmp_path).iloc[0]
    assert row.status == "ok"
    assert row.test_accuracy == accuracy(run.predictions) > row.chance
    assert row.rmse == pytest.approx(errors(run.predictions)["rmse"])
    assert 0 < row.mae < row.rmse < row.chance_rmse
    assert row.chance == 0
    assert run.predictions["predicted"].shape == (40, 1)
    data = load_task("diabetes", "smoke", 0)
    assert row.chance_rmse == pytest.approx(
        float((data.test.labels - data.train.labels.mean(0)).square().mean().sqrt())
    )


# bad input


def test_a_target_that_is_missing_is_named():
    x, y = made()
    y.iloc[7, 1] = np.nan
    with pytest.raises(
        BadData, match=r"targets hold NaN or infinite values, first in row \d+: fix the data"
    ):
        make_table_data(x, y, TARGETS, "quick", 0)


def test_classes_and_real_values_are_not_mixed_up():
    inputs = torch.zeros(4, 3, 1)
    classes, real_values = Split(inputs, torch.arange(4)), Split(inputs, torch.randn(4, 1))
    with pytest.raises(
        BadData,
        match=r"labels of the train split are torch.float32 .*and 0 targets are named: targets=",
    ):
        TaskData(*[real_values] * 3, n_classes=1, in_features=1)
    with pytest.raises(
        BadData, match="labels of the train split are torch.int64 .*1 targets are named"
    ):
        TaskData(*[classes] * 3, n_classes=1, in_features=1, targets=("load",))
    with pytest.raises(BadData, match="n_classes=10 and 1 targets"):
        TaskData(*[real_values] * 3, n_classes=10, in_features=1, targets=("load",))
