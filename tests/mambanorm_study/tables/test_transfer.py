"""Claims about fine-tuning in two phases (S2, §IV.C.3): the compared runs, and their differences."""

import numpy as np
import pandas as pd
import pytest

from mambanorm_study.runs.recorded_results import recorded_runs
from mambanorm_study.tables import transfer
from mambanorm_study.tables.experiments import (
    PRETRAINED_ON,
    RECORDED_TRANSFERS,
    TRANSFER_ARMS,
    transfer_runs,
)


@pytest.mark.parametrize("task", PRETRAINED_ON)
def test_the_runs_that_are_compared_differ_in_where_they_start_and_in_what_learns_first(task):
    runs = transfer_runs(task, "quick", 2)
    for pretrained, scratch, at_once, head_first in zip(*runs.values(), strict=True):
        assert pretrained.task == PRETRAINED_ON[task]
        assert pretrained.seed == scratch.seed
        assert at_once == scratch.but(start=pretrained.run_id)
        assert head_first == at_once.but(head_steps=scratch.steps // 4)
        assert not scratch.start
    assert [config.arm for config in runs["from scratch"]] == 2 * list(TRANSFER_ARMS)
    assert transfer_runs(task, "smoke", 1)["pretrained"][0].steps == 4


def made_frame(runs):
    """Return a run frame whose accuracy says how a run was trained: .5, .6 and .75, ± .01 a seed."""
    accuracy = {"pretrained": 0.9, "from scratch": 0.5, "all at once": 0.6, "head first": 0.75}
    rows = [
        (config.run_id, accuracy[name] + 0.01 * config.seed * (name == "head first"), 10.0)
        for name, configs in runs.items()
        for config in configs
    ]
    return pd.DataFrame(rows, columns=["run_id", "test_accuracy", "rmse"])


def test_differences_are_paired_by_seed_and_arm():
    runs = transfer_runs("digits_images", "smoke", [0, 1, 2])
    table = transfer.differences(runs, made_frame(runs)).set_index(["arm", "a", "b"])
    assert len(table) == len(TRANSFER_ARMS) * len(transfer.DIFFERENCES)
    row = table.loc["FrozenLN", "head first", "from scratch"]
    np.testing.assert_allclose(row.per_seed, [25, 26, 27])
    assert (row.n, row.difference) == (3, pytest.approx(26))
    assert row.low < 25 < 27 < row.high
    np.testing.assert_allclose(row.means, [76, 50])
    tables = transfer_runs("energy", "smoke", [0])
    assert transfer.differences(tables, made_frame(tables)).difference.tolist() == [0.0] * 6


def test_two_phases_are_trained_from_the_pretrained_weights(tmp_path):
    engine = dict(runs_dir=tmp_path, workers=0, progress=False, source="trained")
    table = transfer.load_or_train("digits_images", "smoke", 1, **engine)
    assert table.n.tolist() == [1] * 6
    assert table.difference.notna().all()


def test_where_the_files_are_missing_the_recorded_runs_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path / "no data"))
    for source, scale in (("trained", "quick"), (None, "smoke"), (None, "quick")):
        table = transfer.load_or_train("energy", scale, source=source, runs_dir=tmp_path)
        assert table.n.tolist() == [RECORDED_TRANSFERS["energy"]] * 6


@pytest.mark.parametrize("task", PRETRAINED_ON)
def test_the_recorded_runs_finished(task):
    runs = transfer_runs(task, "quick", RECORDED_TRANSFERS[task])
    frame = recorded_runs([config for configs in runs.values() for config in configs])
    assert (frame.status == "ok").all()
