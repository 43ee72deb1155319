"""Claims about bad input, on the command line and in the lists of runs: one line says what is
wrong, exit code 2.
"""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import mambanorm as mn
import mambanorm_study as study
from mambanorm_study.basics.settings import SCALES
from mambanorm_study.cli import arguments
from mambanorm_study.cli.main import main
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.tables import notebook_runs

pytestmark = pytest.mark.usefixtures("store")

SWEEP = ["sweep", "--grid", "type"]
DIGITS = "1" * 5_000
TRAIN = ["train", "--arm", "RMSN>SSM>GN", "--scale", "smoke"]


def setting(text: str) -> list[str]:
    return [*TRAIN, "--set", text]


COMMANDS = [  # one or two a rule
    # names, with the nearest
    (["stdy"], "did you mean 'study'"),
    ([], "required: COMMAND"),
    (["train", "--arm", "RMS>SSM>GN"], "did you mean 'RMSN'"),
    (["train", "--arm", "LN>SSM>LN", "--task", "digit"], "did you mean 'digits'"),
    (["sweep", "--grid", "posision"], "did you mean 'position'"),
    (["sweep", "--grid", "type", "--arms", "LN>SSM>LN"], "give either --arms or --grid"),
    ([*SWEEP, "--tasks", "digits,listop"], "did you mean 'listops'"),
    ([*SWEEP, "--tasks", "digits,digits"], "name 'digits' is given twice"),
    (["study", "--notebooks", "99"], "unknown notebook '99'"),
    (["verdicts", "--claims", "H1s,,H3s"], "lacks a name"),
    (["verdicts", "--claims", "H33s"], "did you mean 'H3s'"),
    (
        ["verdicts", "--claims", "H1s", "--seeds", "40-43", "--dry-run"],
        "test seeds are 52 to 99, got 40, 41, 42, 43",
    ),
    (["tasks", "--scale", ""], "unknown scale ''"),
    (["bench", "--only", "scn"], "did you mean 'scan'"),
    # files and folders
    (["record", "--dry-run", "--out", "/dev/null"], "/dev/null cannot be read as a recorded frame"),
    (
        ["slides", "--from", "EMPTY"],
        "EMPTY has none of these notebooks: name a folder such as reports/evening",
    ),
    (["--import", "/dev/null", "runs"], "ImportError: the name of a Python file must end in .py"),
    (["runs", "--import", "nowhere.py"], "nowhere.py: FileNotFoundError"),
    # fields of a config
    (setting("n_layer=3"), "did you mean 'n_layers'"),
    (setting("lr"), "lr=VALUE"),
    (setting("task=digits"), "unknown field for --set 'task': valid are"),
    ([*setting("lr=1e-3"), "--set", "lr=2e-3"], "--set 'lr' is given twice"),
    (setting("steps="), "steps must be a whole number of at least 1, got ''"),
    (setting("steps=" + DIGITS), "steps must be a whole number of at least 1, got '111"),
    (
        setting("d_model=1000000000"),
        "d_model must be a whole number of at least 1 and at most 65,536, got 1000000000",
    ),
    (
        [*setting("n_layers=1000000"), "--dry-run"],
        "n_layers must be a whole number of at least 1 and at most 1,000",
    ),
    (
        ["plan", "--scale", "smoke", "--set", "d_model=65536", "--set", "n_layers=50"],
        "choose a smaller model",
    ),
    (setting("lr=nan"), "lr must be a finite number of at least 0, got 'nan'"),
    (
        setting("down_sample=" + "[" * 50_000 + "]" * 50_000),
        "down_sample must be a list of blocks, counted from 1",
    ),
    (
        setting('norm_options={"a": ' + "[" * 100_000),
        "norm_options must be a dict such as {'groups': 8}, got",
    ),
    (setting("device=gpu"), "did you mean 'cpu'"),
    # parts beyond their whole
    (setting("warmup_steps=5"), "warmup_steps=5 is beyond steps=4"),
    (setting("micro_batch=9"), "micro_batch=9 is beyond batch_size=8"),
    (setting("train_rows=121"), "train_rows=121 is beyond the 120 training rows of digits"),
    # seeds and other numbers
    ([*SWEEP, "--seeds", "1.7"], "neither a number of seeds"),
    ([*SWEEP, "--seeds", "0"], "the number of seeds must be a whole number from 1 to 100, got 0"),
    ([*SWEEP, "--seeds", "1,1"], "seed 1 is given twice"),
    ([*SWEEP, "--seeds", "1000000000"], "must be a whole number from 1 to 100, got 1000000000"),
    ([*TRAIN, "--seed", DIGITS], "111… is no whole number from 0 to 4,294,967,295"),
    ([*SWEEP, "--workers", "x"], "'x' is no whole number from 0"),
    (["bench", "--repeats", DIGITS], "111… is no whole number from 1"),
    (["bench", "--threads", "1000"], "--threads 1000: this machine has"),
    (["explore", "--port", "70000"], "'70000' is no whole number from 1 to 65,535"),
    # flags that are fields, and others
    ([*TRAIN, "--lr", "1e-3"], "is changed by --set FIELD=VALUE"),
]


@pytest.mark.parametrize(
    ("argv", "said"),
    COMMANDS,
    ids=lambda part: " ".join(part)[:80] if isinstance(part, list) else "",
)
def test_nonsense_is_one_line_and_exit_code_2(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("MAMBANORM_DEBUG", raising=False)
    monkeypatch.setenv("MAMBANORM_IMPORT", "")
    (tmp_path / "file").write_text("")
    code = main([str(tmp_path / "file") if part == "FILE" else part for part in argv])
    out, err = capsys.readouterr()
    assert said in err
    assert (code, out) == (2, "")
    assert err.startswith("mambanorm: ")
    assert err.count("\n") == 1
    assert len(err) < 700


OWN_NORM = """
import torch
from torch import nn
import mambanorm as mn
@mn.register_norm(
    "Fails", equation="", source="mine", axes=("D",), causal=True, learnable="", check=False
)
class Fails(nn.Module):
    def __init__(self, d):
        super().__init__()
    def forward(self, x{arguments}):
        {body}
"""


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (
            ", lengths=None",
            "raise TypeError('unhashable')",
            "unexpected TypeError: unhashable; --debug shows where",
        ),
        (", lengths=None", "return torch.cat(x, 3.5)", "unexpected TypeError: cat()"),
        (
            ", lengths=None",
            "raise ValueError('not 2')",
            "unexpected ValueError: not 2; --debug shows where",
        ),
        (
            ", lengths=None",
            "return x @ x",
            "unexpected RuntimeError: Expected size for first two dimensions of batch2",
        ),
        (
            "",
            "return x",
            "unexpected TypeError: Fails.forward() takes 2 positional arguments "
            "but 3 were given; -",
        ),
    ],
)
def test_an_error_in_a_norm_of_ones_own_is_no_mistake_in_the_arguments(
    arguments, body, said, capsys, tmp_path
):
    """Once it was shown as an error of the command line, without its origin."""
    (tmp_path / "fails.py").write_text(OWN_NORM.format(arguments=arguments, body=body))
    argv = [
        "--import",
        str(tmp_path / "fails.py"),
        "train",
        "--arm",
        "Fails>SSM>None",
        "--scale",
        "smoke",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mambanorm_study", *argv],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].startswith(f"mambanorm: {said}")
    assert "--debug shows where" in done.stderr
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_file_name_that_is_too_long_is_shown_briefly(capsys, store):
    store.mkdir()
    for argv in (
        ["runs", "--runs-dir", DIGITS],
        ["diagnose", DIGITS, "--text", "x"],
    ):
        assert main(argv) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err.endswith("… File name too long\n")) == ("", 1, True)
        assert len(err) < 120


CALLS = {  # one a rule
    "seeds=[1.7]": (
        lambda: study.notebook_runs("smoke", seeds=[1.7]),
        "a seed must be a whole number from 0 to 4,294,967,295, got 1.7",
    ),
    "seeds=[2**32]": (
        lambda: study.grid(["LN>SSM>LN"], seeds=[2**32]),
        "from 0 to 4,294,967,295, got 4294967296",
    ),
    "seeds=-2": (
        lambda: study.grid(["LN>SSM>LN"], seeds=-2),
        "the number of seeds must be a whole number from 1 to 100",
    ),
    "seeds=range(10**9)": (
        lambda: study.grid(["LN>SSM>LN"], seeds=range(10**9)),
        "more than 1,000 seeds",
    ),
    "device=cpu:7": (lambda: study.RunConfig(device="cpu:7"), "unknown device 'cpu:7'"),
    "task=5": (lambda: study.RunConfig(task=5), "task must be the name of a task"),
    "a field that is none": (
        lambda: study.base_config(lrr=1),
        "unknown field of RunConfig 'lrr': valid are task, arm",
    ),
    "a config of a list": (lambda: study.RunConfig.from_json("[1]"), "a config is a JSON object"),
    "warmup": (
        lambda: study.base_config("digits", "quick", steps=10),
        "warmup_steps=20 is beyond steps=10",
    ),
    "study(tasks=[])": (
        lambda: study.notebook_runs("smoke", tasks=[]),
        "tasks must be a list of names, got []",
    ),
    "train({})": (
        lambda: study.train({}),
        "config must be a RunConfig, as base_config makes it, got a dict",
    ),
    "sweep('abc')": (
        lambda: study.sweep("abc"),
        "each of configs must be a RunConfig, as grid makes it, got 'a'",
    ),
    "judge('H1s', 3)": (
        lambda: study.judge("H1s", 3),
        "frame must be a DataFrame, as load_runs makes it, got 3",
    ),
    "grid([])": (
        lambda: study.grid([]),
        "arms must be a list of arms such as ['RMSN>SSM>GN'], got []",
    ),
    "Arm at no site": (lambda: mn.Arm("LN", "LN", {"q": "LN"}), "unknown site 'q'"),
}


@pytest.mark.parametrize("call", CALLS)
def test_nonsense_in_python_says_what_is_wrong(call):
    ask, said = CALLS[call]
    with pytest.raises((ValueError, TypeError), match=re.escape(said)):
        ask()


def test_a_single_name_stands_for_itself():
    def ids(configs):
        return [one.run_id for one in configs]

    alone, listed = (study.notebook_runs("smoke", tasks) for tasks in ("digits", ["digits"]))
    assert alone == listed
    assert {one.task for one in alone["03_type"]} == {"digits"}
    options = dict(seeds=1, scale="smoke")
    assert (
        ids(study.needed("H1s", tasks="digits", **options))
        == ids(study.needed("H1s", tasks=["digits"], **options))
        != []
    )
    assert ids(study.grid("LN>SSM>LN", "digits", **options)) == ids(
        study.grid(["LN>SSM>LN"], ["digits"], **options)
    )
    assert notebook_runs.validation_tasks("smoke", "listops") == ["listops"]


def test_seeds_may_be_any_whole_numbers():
    assert check_seeds(np.int64(2), "smoke") == [0, 1]
    assert check_seeds(np.arange(3), "smoke") == [0, 1, 2]
    assert check_seeds((seed for seed in (5, 2222)), "smoke") == [5, 2222]
    assert check_seeds(100, "smoke")[-1] == 99


def test_every_run_of_the_study_keeps_its_parts_within_their_whole():
    for scale in SCALES:
        for one in [run for runs in study.notebook_runs(scale, seeds=1).values() for run in runs]:
            assert one.warmup_steps <= one.steps
            assert one.batch_size <= (one.train_rows or one.batch_size)
            assert one.micro_batch <= one.batch_size


def test_debug_shows_where_an_error_comes_from(capsys, monkeypatch):
    monkeypatch.setenv("MAMBANORM_DEBUG", "")
    assert main(["runs", "--debug", "--tasks", "digit"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "minutes"), [("4", 4.0), ("0.5", 0.5), ("1440", 1440.0)])
def test_minutes_are_any_number(text, minutes):
    assert arguments.minutes(text) == minutes
    assert arguments.fresh("all") == "all"
    assert arguments.fresh("3") == 3


@pytest.mark.parametrize("text", ["", "-1", "four", "1e3", "inf", "4 min"])
def test_what_is_no_number_of_minutes_is_refused(text, capsys):
    with pytest.raises(ValueError, match="no number of minutes such as 4 or 0.5"):
        arguments.minutes(text)
    assert main(["study", f"--minutes={text}", "--dry-run"]) == 2
    assert "--minutes" in capsys.readouterr().err
    with pytest.raises(ValueError, match="whole number"):
        arguments.fresh("ALL")
