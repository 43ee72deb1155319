"""Claims about the tasks: what an expression means, what a split holds, what the user is told when
it is wrong.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mambanorm_study.basics.settings import SCALES
from mambanorm_study.tasks import (
    TASKS,
    Split,
    TaskData,
    digits,
    files,
    listops,
    load_task,
    register_task,
    registry,
)
from mambanorm_study.tasks.listops import SETTINGS, draw_expressions, read_lra

LONG = (
    "( ( ( ( ( ( ( ( ( [MAX ( ( ( [MED 7 ) 6 ) ] ) ) 0 ) 6 ) 4 ) 7 ) 1 ) 2 ) "
    "( ( ( ( ( ( ( ( [MED 8 ) 6 ) 4 ) 2 ) 0 ) 4 ) 4 ) ] ) ) ] )"
)
EXAMPLES = [
    (LONG, 7, "[MAX [MED 7 6 X 0 6 4 7 1 2 [MED 8 6 4 2 0 4 4 X X"),
    ("( ( ( ( ( [MED 1 ) 9 ) 4 ) 8 ) ] )", 6, "[MED 1 9 4 8 X"),
    (
        "( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )",
        2,
        "[SM 8 9 [MAX 2 5 [MIN 3 1 X X X",
    ),
]


@pytest.fixture(scope="session")
def shared_data_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _data_folder(monkeypatch, shared_data_folder):
    """Use one temporary data folder for all tests, so that none writes into the project's."""
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(shared_data_folder))


@pytest.fixture
def empty_folder(monkeypatch, tmp_path):
    """Use a new, empty data folder without cached pools."""
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    listops._load_pool.cache_clear()
    yield tmp_path / "listops"
    listops._load_pool.cache_clear()


@pytest.fixture
def own_tasks(monkeypatch):
    """Return a copy of the registry that replaces it during the test."""
    monkeypatch.setattr(registry, "TASKS", mine := dict(TASKS))
    return mine


def evaluate(source):
    """Return the value of an expression of tokens, by an independent computation in NumPy."""
    reduce = {
        "[MIN": np.min,
        "[MAX": np.max,
        "[MED": lambda x: math.trunc(np.median(x)),
        "[SM": lambda x: np.sum(x) % 10,
    }
    stack = [("", [])]
    for token in source.split():
        if token in reduce:
            stack.append((token, []))
        elif token == "]":
            operator, args = stack.pop()
            stack[-1][1].append(int(reduce[operator](args)))
        else:
            stack[-1][1].append(int(token))
    ((_, (value,)),) = stack
    return value


def decode(ids):
    """Return the text of a row of ids without `<pad>` and `<eos>`."""
    tokens = [listops.VOCABULARY[i] for i in map(int, ids) if i not in (0, listops.EOS)]
    return " ".join("]" if token == "X" else token for token in tokens)


def drawn(n, settings, seed=0):
    """Return n expressions as (text, value)."""
    return [(decode(ids), value) for ids, value in draw_expressions(n, settings, seed).items()]


def rows_of(split):
    """Return every row as bytes."""
    return [row.numpy().tobytes() for row in split.inputs]


# ----------------------------------------------------------------------------------------- notation


@pytest.mark.parametrize(("source", "value", "tokens"), EXAMPLES)
def test_the_worked_examples_have_their_value_and_the_s4_readers_tokens(
    tmp_path, source, value, tokens
):
    ((ids, label),) = read_lra(write_tsv(tmp_path / "rows.tsv", f"{source}\t{value}"))
    assert [listops.VOCABULARY[i] for i in ids] == tokens.split()
    assert label == evaluate(decode(ids)) == value
    assert (len(listops.VOCABULARY), listops.VOCABULARY[:3]) == (18, ("<pad>", "<unk>", "<eos>"))


# ---------------------------------------------------------------------------------------- generator


def test_what_is_drawn_is_distinct_deterministic_and_its_first_rows_never_change():
    first, second = (drawn(50, SETTINGS["quick"], 7) for _ in range(2))
    assert first == second
    assert first != drawn(50, SETTINGS["quick"], 8)
    assert drawn(1, SETTINGS["smoke"]) == [("[MAX [MAX 7 3 4 ] 9 2 6 ]", 9)]
    pairs = drawn(500, SETTINGS["quick"], 1)
    assert all(evaluate(source) == label for source, label in pairs)
    assert len({source for source, _ in pairs}) == 500


def test_quick_is_nested_lists_of_5_to_40_tokens_with_no_class_to_bet_on():
    data = load_task("listops", "quick", 0)
    lengths = (
        torch.cat([part.lengths for part in (data.train, data.val, data.test)]) - 1
    )  # without <eos>
    labels = torch.cat([part.labels for part in (data.train, data.val, data.test)])
    assert (int(lengths.min()), int(lengths.max())) == (5, 40)
    assert lengths.double().mean() == pytest.approx(19, abs=0.5)
    assert 0.10 < labels.bincount().max() / len(labels) < 0.15
    operators = ((data.train.inputs >= 13) & (data.train.inputs <= 16)).sum(1)
    assert (operators > 1).double().mean() > 0.8
    assert (data.n_classes, data.vocab_size, data.in_features) == (10, 18, None)
    assert tuple(map(len, (data.train, data.val, data.test))) == (20_000, 1_000, 2_000)


def test_the_paper_generator_has_lras_statistics():
    """Compare 3,000 expressions with 3,000 of LRA's generator.

    The bounds are 3.3 standard errors (99.9 %) of the difference of two such samples; for a median,
    of the share below it.
    """
    n, bound = 3_000, 3.3 * math.sqrt(2 / 3_000)
    expressions = draw_expressions(n, SETTINGS["paper"], seed=11)
    lengths, labels = list(map(len, expressions)), list(expressions.values())
    assert statistics.mean(lengths) == pytest.approx(1_038, abs=bound * statistics.stdev(lengths))
    assert sum(length < 966 for length in lengths) / n == pytest.approx(0.5, abs=bound * 0.5)
    assert 500 < min(lengths) < max(lengths) < 2_000
    shares = np.bincount(labels, minlength=10) / n
    for share in shares[[0, 9]]:
        assert share == pytest.approx(
            0.17, abs=0.005 + bound * math.sqrt(0.17 * 0.83)
        )  # "about 17 %"
    slack = bound * math.sqrt(0.08 * 0.92)
    assert ((0.07 - slack < shares[1:9]) & (shares[1:9] < 0.09 + slack)).all()
    assert statistics.mean(lengths) == pytest.approx(
        listops.MEAN_TOKENS["paper"], abs=bound * statistics.stdev(lengths)
    )


def test_paper_settings_are_lras():
    paper = SETTINGS["paper"]
    assert paper.sizes == (96_000, 2_000, 2_000)
    assert (len(paper.operator_probability) + 1, set(paper.operator_probability)) == (10, {0.25})
    assert (listops.MIN_ARGS, paper.max_args, paper.longer_than, paper.shorter_than) == (
        2,
        10,
        500,
        2_000,
    )
    assert set(SETTINGS) == set(SCALES)


# ------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize("name", ["digits", "listops"])
def test_the_seed_decides_the_split(name):
    first, again, other = (TASKS[name].load("smoke", seed) for seed in (0, 0, 1))
    for part in ("train", "val", "test"):
        assert rows_of(getattr(first, part)) == rows_of(getattr(again, part))
        assert rows_of(getattr(first, part)) != rows_of(getattr(other, part))


def test_seeds_share_one_pool_of_labelled_rows_and_no_expression_stands_in_two_splits():
    pools = []
    for seed in (0, 5):
        data = load_task("listops", "smoke", seed)
        pools.append(
            sorted(row for part in (data.train, data.val, data.test) for row in rows_of(part))
        )
    assert pools[0] == pools[1]
    assert len(pools[0]) == len(set(pools[0])) == 128
    for part in (data.train, data.test):
        assert [evaluate(decode(row)) for row in part.inputs] == part.labels.tolist()
        assert part.inputs.dtype == torch.uint8
        ends = zip(part.inputs, part.lengths, strict=True)
        assert all(row[length - 1] == 2 and not row[length:].any() for row, length in ends)


def test_digits_are_all_there_once_and_stratified():
    data = load_task("digits", "quick", 0)
    sizes = tuple(map(len, (data.train, data.val, data.test)))
    assert sizes == (1_079, 359, 359)
    assert data.train.inputs.shape == (1_079, 64, 1)
    assert data.train.inputs.dtype == torch.float32
    assert (data.train.inputs.min(), data.train.inputs.max()) == (-1, 1)
    assert (data.n_classes, data.vocab_size, data.in_features) == (10, None, 1)
    whole = (
        torch.cat([part.labels for part in (data.train, data.val, data.test)]).bincount() / 1_797
    )
    for part in (data.train, data.val, data.test):
        assert (part.labels.bincount() - whole * len(part)).abs().max() <= 1


def test_digit_splits_share_no_image_and_keep_every_class():
    assert sorted(np.concatenate(digits.stratified_splits(np.arange(300) % 10, 4))) == list(
        range(300)
    )
    data = load_task("digits", "smoke", 0)
    assert sum(map(len, (data.train, data.val, data.test))) == 200
    assert all(part.labels.unique().numel() == 10 for part in (data.train, data.val, data.test))


def test_chance_bets_on_the_training_splits_most_common_class():
    def split(*labels):
        return Split(torch.zeros(len(labels), 2, 1), torch.tensor(labels))

    data = TaskData(split(0, 1, 1), split(0), split(0, 0, 0, 1), n_classes=2, in_features=1)
    assert data.chance == 0.25  # not 0.75, which would have looked at the test labels
    tie = TaskData(split(1, 0), split(0), split(0, 0, 0, 1), n_classes=2, in_features=1)
    assert tie.chance == 0.75


# ------------------------------------------------------------------------------------------ batches


PADDED = Split(
    torch.tensor([[3, 4, 2, 0, 0], [3, 2, 0, 0, 0], [3, 4, 5, 6, 2]], dtype=torch.uint8),
    torch.tensor([7, 8, 9]),
    torch.tensor([3, 2, 5]),
)


ROWS = [[1, 0], torch.tensor([1, 0]), np.array([1, 0])]


@pytest.mark.parametrize("rows", ROWS, ids=["list", "tensor", "array"])
def test_a_batch_of_tokens_is_int64_and_cut_to_its_longest_row(rows):
    inputs, lengths, labels = PADDED.batch(rows)
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[3, 2, 0], [3, 4, 2]]
    assert (lengths.tolist(), labels.tolist()) == ([2, 3], [8, 7])
    assert PADDED.batch(slice(0, 2))[2].tolist() == [7, 8]
    assert PADDED.batch([False, False, True])[0].shape == (1, 5)
    real = Split(torch.rand(4, 6, 2), torch.zeros(4, dtype=torch.int64))
    assert torch.equal(real.batch(rows)[0], real.inputs[[1, 0]])
    assert real.batch(rows)[1] is None


@pytest.mark.parametrize("rows", [[], slice(0, 0), [False, False, False]])
def test_a_batch_of_no_row_is_refused(rows):
    with pytest.raises(ValueError, match="selects no row"):
        PADDED.batch(rows)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"labels": torch.zeros(2).long()}, r"labels are torch.int64 of shape \(2,\)"),
        ({"lengths": torch.tensor([0, 2, 6])}, "from 0 to 6: allowed are 1 to 5"),
    ],
)
def test_a_split_whose_parts_do_not_fit_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(PADDED, **wrong)


# ---------------------------------------------------------------------------------------------- LRA


def write_tsv(path, *rows, header="Source\tTarget"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_real_rows_are_read_and_their_labels_are_their_values():
    folder = os.environ.get("MAMBANORM_REAL_DATA")
    if not folder:
        pytest.skip("MAMBANORM_REAL_DATA is unset: it names the folder with real rows")
    path = Path(folder) / "listops_lra_format" / "sample_rows.tsv"
    rows = read_lra(path)
    assert len(rows) == len(path.read_text().splitlines()) - 1 > 0
    assert all(evaluate(decode(ids)) == value for ids, value in rows)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_tsv_file_gives_back_what_was_generated(tmp_path, ending):
    pairs = drawn(20, SETTINGS["smoke"])
    text = (
        ending.join(["Source\tTarget", *(f"{source}\t{label}" for source, label in pairs)]) + ending
    )
    (tmp_path / "rows.tsv").write_bytes(text.encode())
    assert [(decode(ids), value) for ids, value in read_lra(tmp_path / "rows.tsv")] == pairs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "No columns"),
        (b"3\t3\n", "'Target'"),
        (b"Source\tTarget\n[MAX 1 12 ]\t2\n", "'12'"),
        (b"Source\tTarget\n[MAX 1 2 ]\t12\n", "row 1: label 12, allowed are 0 to 9"),
        (b"Source\tTarget\n[MAX 1 2 ]\n", "row 1: label nan"),
        (b"\x93NUMPY", "0x93"),
    ],
)
def test_a_file_that_is_not_lras_is_refused_with_its_name(tmp_path, content, message):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.tsv is not a file of LRA \(.*{message}"):
        read_lra(tmp_path / "a.tsv")


def put_lra_files(folder, *splits, n=5):
    """Write LRA's release with n rows a split; return its expressions and their values."""
    pairs = drawn(3 * n, SETTINGS["smoke"])
    for i, split in enumerate(splits):
        write_tsv(
            folder / f"basic_{split}.tsv",
            *(f"{source}\t{label}" for source, label in pairs[i * n : i * n + n]),
        )
    return pairs


def test_lras_own_files_are_used_at_paper_scale_if_all_are_there_and_whole(
    empty_folder, monkeypatch
):
    pairs = put_lra_files(empty_folder, "train", "val", "test")
    with pytest.raises(
        ValueError, match=r"holds 5 \+ 5 \+ 5 rows, scale paper needs 96,000 \+ 2,000 \+ 2,000"
    ):
        listops.load_listops("paper", 0)
    monkeypatch.setitem(SETTINGS, "paper", replace(SETTINGS["paper"], sizes=(5, 5, 5)))
    data = listops.load_listops("paper", 0)
    parts = (data.train, data.val, data.test)
    assert [
        (decode(row), int(label))
        for part in parts
        for row, label in zip(part.inputs, part.labels, strict=True)
    ] == pairs
    (empty_folder / "basic_test.tsv").unlink()
    listops._load_pool.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"basic_test\.tsv"):
        listops.load_listops("paper", 0)


# -------------------------------------------------------------------------------------------- cache


def test_the_cache_gives_back_what_was_generated(empty_folder, monkeypatch):
    made = listops.load_listops("smoke", 3)
    assert len(list(empty_folder.iterdir())) == 1
    listops._load_pool.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(listops, "draw_expressions", None)  # must not be needed any more
        assert rows_of(listops.load_listops("smoke", 3).train) == rows_of(made.train)
    monkeypatch.setitem(SETTINGS, "smoke", replace(SETTINGS["smoke"], max_args=3))
    listops._load_pool.cache_clear()
    listops.load_listops("smoke", 3)
    assert len(list(empty_folder.iterdir())) == 2  # changed settings have a file of their own


@pytest.mark.parametrize("damage", ["emptied", "cut", "garbled", "flipped"])
def test_a_damaged_cache_is_reported_by_name_and_made_anew(empty_folder, damage):
    made = listops.load_listops("smoke", 3)
    (path,) = empty_folder.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 4] ^= 0xFF
    path.write_bytes(
        {"emptied": b"", "cut": whole[:-40], "garbled": b"x" * 500, "flipped": bytes(flipped)}[
            damage
        ]
    )
    listops._load_pool.cache_clear()
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged and is written again"):
        again = listops.load_listops("smoke", 3)
    assert rows_of(again.train) == rows_of(made.train)
    assert len(path.read_bytes()) == len(whole)


def test_a_cache_that_fails_half_way_leaves_nothing_behind(empty_folder, monkeypatch):
    def half(file, *arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(files.np, "savez_compressed", half)
    with pytest.raises(OSError, match="disk full"):
        listops.load_listops("smoke", 0)
    assert list(empty_folder.iterdir()) == []


# ----------------------------------------------------------------------------------------- registry


def test_an_unknown_task_or_scale_names_the_valid_ones_and_the_nearest():
    with pytest.raises(
        ValueError,
        match="unknown task 'digit': valid are digits, digits_images, .*; did you mean 'digits'",
    ):
        load_task("digit", "smoke", 0)
    with pytest.raises(ValueError, match="unknown scale 'quik': .*did you mean 'quick'"):
        load_task("digits", "quik", 0)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ValueError, match="a seed must be a whole number from 0"):
        load_task("digits", "smoke", seed)
    assert load_task("digits", "smoke", 2) is load_task(
        "digits", "smoke", np.int64(2)
    )  # many arms share one loading


def constant(n_test=2):
    def load(scale, seed):
        def split(n):
            return Split(torch.zeros(n, 3, 1), torch.zeros(n, dtype=torch.int64))

        return TaskData(split(4), split(2), split(n_test), n_classes=2, in_features=1)

    return load


def test_a_task_of_ones_own_is_registered_and_loaded(own_tasks):
    register_task("constant", title="Nothing to learn", source="this test")(constant())
    assert load_task("constant", "quick", 0).chance == 1
    assert (own_tasks["constant"].title, own_tasks["constant"].kind) == (
        "Nothing to learn",
        "sequence",
    )
    assert "constant" not in TASKS
    with pytest.raises(ValueError, match="'digits' is registered already"):
        register_task("digits", title="Mine", source="this test")(constant())
    register_task("hollow", title="Nothing to test", source="this test")(constant(n_test=0))
    with pytest.raises(ValueError, match="task 'hollow' at scale 'smoke': the test split is empty"):
        load_task("hollow", "smoke", 0)
    for given in ({}, {"vocab_size": 3, "in_features": 1}):
        with pytest.raises(ValueError, match="give exactly one"):
            TaskData(PADDED, PADDED, PADDED, n_classes=10, **given)
