"""Claims about `mambanorm record`: parts are recorded as a whole, and time can be limited."""

from types import SimpleNamespace

import pandas as pd
import pytest

from mambanorm_study.cli import recording


@pytest.fixture
def trained(monkeypatch):
    """Replace training: each run takes 20 s. Return the numbers of runs of the trained parts."""
    clock, counts = SimpleNamespace(seconds=0.0), []

    def train(find_needed, *_, **__):
        counts.append(len(find_needed(None)))
        clock.seconds += 20 * counts[-1]
        return SimpleNamespace(failed=[], needed=[])

    known = pd.DataFrame({"run_id": pd.Series(dtype=str)})
    monkeypatch.setattr(recording.time, "monotonic", lambda: clock.seconds)
    monkeypatch.setattr(recording, "train_needed", train)
    monkeypatch.setattr(recording, "known_runs", lambda *_: known)
    monkeypatch.setattr(recording, "_add_runs", lambda *_: None)
    sizes = [5, 5, 5, 400]
    parts = [
        recording.Part(f"part {k}", (52,), lambda _, n=n, k=k: [run(k, i) for i in range(n)])
        for k, n in enumerate(sizes)
    ]
    monkeypatch.setattr(recording, "parts", lambda *_, **options: parts)
    return counts


def run(part, number):
    return SimpleNamespace(run_id=f"{part}-{number}")


@pytest.mark.parametrize(
    ("minutes", "counts"), [(0.1, [5]), (3.5, [5, 5]), (8, [5, 5, 5]), (None, [5, 5, 5, 400])]
)
def test_a_time_limit_stops_before_a_part_that_would_end_too_late(
    minutes, counts, trained, tmp_path, capsys
):
    recording.record_results("lab", path=tmp_path / "lab.parquet", minutes=minutes)
    assert trained == counts
    assert ("no time for another part" in capsys.readouterr().out) == (minutes is not None)
