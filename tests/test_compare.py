"""Any arm against any other: the rule of the verdicts, recorded partners, and an answer in words."""

import planted
import pytest

import mambanorm as mn
from mambanorm.advice import which_arm as ranking
from mambanorm.claims.protocol import GRID_SEEDS, TRAINED_TASKS
from mambanorm.cli.main import main

ARM, OTHER = "LN>SSM>GN", "RMSN>SSM>None"


@pytest.fixture
def made_up(monkeypatch):
    """compare() on a made-up frame in which ARM leads by so many points."""

    def answer(lead, *, lost=(), **how):
        configs = ranking.duel_runs(ARM, OTHER, "digits", range(8), "quick", mn.load_runs("nowhere"))
        frame = planted.study(planted.rows_of(configs), {ARM: lead}, **how)
        frame = planted.where(frame, (frame.arm == ARM) & frame.seed.isin(lost), status="diverged")
        monkeypatch.setattr(ranking, "frame_of", lambda *_: frame)
        return mn.compare(ARM, OTHER, "digits", seeds=8, scale="quick").iloc[0]

    return answer


@pytest.mark.parametrize(
    ("lead", "sd", "said"),
    [
        (5.0, 0.5, "LN→GN is better than RMSN→None by more than one point (+"),
        (-5.0, 0.5, "RMSN→None is better than LN→GN by more than one point (−"),
        (0.0, 0.2, "LN→GN and RMSN→None differ by less than one point ("),
        (2.0, 3.0, "we cannot tell whether LN→GN or RMSN→None is better ("),
    ],
)
def test_the_answer_is_said_in_words(made_up, lead, sd, said):
    row = made_up(lead, sd=sd)
    assert row.said.startswith(said)
    assert row.n == 8
    assert abs(row.effect - lead) < 2 * sd
    assert row.low < row.effect < row.high
    assert row.said.endswith("the seeds share one pool of rows, and this speaks of it alone")


def test_runs_that_diverged_are_counted_and_too_few_pairs_are_not_judged(made_up):
    row = made_up(5.0, sd=0.5, lost=(1, 4, 6))
    assert (row.diverged, row.diverged_against, row.n) == (3, 0, 5)
    assert row.said.startswith("not judged: fewer than six seeds on which every compared run finished: 5")


def test_the_recorded_seeds_of_the_other_are_taken_unless_seeds_are_asked_for():
    assert ranking.duel_seeds(OTHER, TRAINED_TASKS[0], "evening", None) == list(GRID_SEEDS)
    assert ranking.duel_seeds(OTHER, "listops", "smoke", None) == list(range(8))
    assert ranking.duel_seeds(OTHER, TRAINED_TASKS[0], "evening", [3, 4]) == [3, 4]


def test_the_command_trains_what_lacks_and_prints_a_line_a_task(tmp_path, capsys):
    call = ["compare", ARM, "--scale", "smoke", "--tasks", "digits", "--seeds", "6", "--runs-dir", str(tmp_path)]
    assert main([*call, "--dry-run"]) == 0
    assert "36 runs asked for, 0 in the store" in capsys.readouterr().out
    assert main([*call, "--workers", "0"]) == 0
    assert capsys.readouterr().out.strip().startswith("digits: ")
    assert len(mn.load_runs(tmp_path)) >= 36


@pytest.mark.parametrize(
    ("arm", "options", "said"),
    [
        (OTHER, [], f"{OTHER} against itself: give two arms"),
        (ARM, ["--tasks", "pydoc"], "norm 'GN' sees the future"),
        (ARM, ["--tasks", "diabetes"], "diabetes is a regression"),
        ("LN>MHA>LN", [], "compare one kind"),
        ("Nix>SSM>GN", [], "unknown norm 'Nix'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_trained(arm, options, said, tmp_path, capsys):
    assert main(["compare", arm, "--runs-dir", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
