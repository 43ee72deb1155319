"""Claims about `mambanorm record`: parts are recorded as a whole, and time can be limited."""

from types import SimpleNamespace

from mambanorm_study.cli import recording


def test_a_time_limit_starts_no_part_that_would_end_too_late(monkeypatch, tmp_path, capsys):
    clock, trained = SimpleNamespace(seconds=0.0), []

    def train(find_needed, *_, **__):  # takes 100 s
        trained.append(find_needed(None)[0].seed)
        clock.seconds += 100
        return SimpleNamespace(failed=[], needed=[])

    monkeypatch.setattr(recording.time, "monotonic", lambda: clock.seconds)
    monkeypatch.setattr(recording, "train_needed", train)
    monkeypatch.setattr(recording, "_add_runs", lambda *_: None)
    options = dict(tasks=["listops"], path=tmp_path / "lab.parquet")
    recording.record_results("lab", minutes=5, **options)
    assert trained == [52, 53, 54]
    assert "no time for another part" in capsys.readouterr().out
    recording.record_results("lab", minutes=0.1, **options)
    assert trained == [52, 53, 54, 52]  # the first part is always recorded
