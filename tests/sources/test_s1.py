"""The items of source S1, the paper: one test an item. docs/sources.md lists the items.

Each test shows that an item is there and does what the source says, and that its notebook uses it.
The tests of the parts themselves, with their twins and edge cases, stand beside this folder.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, layer_norm, linear, rms_norm, silu, softplus

import mambanorm as mn
import mambanorm_study as study
from mambanorm.arms import PRESETS
from mambanorm.inside import singular_values, token_norms
from mambanorm.loop import learning_rate
from mambanorm.operations.reference import scan_reference
from mambanorm_study import figures
from mambanorm_study.lessons import elements
from mambanorm_study.models.vision import ImageClassifier, cross_merge, cross_scan
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.runs.weight_log import BLOCK_PARTS, marchenko_pastur, part_norms
from mambanorm_study.tables import (
    contrasts,
    diagnostics,
    norm_catalog,
    paper,
    procedure,
    run_tables,
)
from mambanorm_study.tables.experiments import GRID_ARMS
from tests.sources.shown import assert_shown, drawn_numbers, texts_of
from tests.twins import sample, scrambled

NORMS = ["BN", "IN", "LN", "RMSN", "GN"]


@pytest.fixture(scope="module")
def grid():
    """The recorded runs of the 6×6 grid on images, each arm at its learning rate."""
    planned = study.notebook_runs("evening", ["glyphs_images"], None, "recorded")["09_vision"]
    ids = {config.run_id for config in planned if config.arm in set(map(str, GRID_ARMS))}
    frame = recorded("evening")
    return frame[frame.run_id.isin(ids)]


def mean_of(runs, arm):
    """Return the mean test accuracy of an arm, in per cent with one decimal."""
    return round(100 * float(runs.test_accuracy[runs.arm == arm].mean()), 1)


# The framework: A1 to A6


def test_a1_the_block_is_equations_1_to_3():
    """S1 §3.1, Eq. 1–3: "let N_1 represent the normalization layer, which normalizes the input x"."""
    block = scrambled(mn.MambaBlock(8, "LN", "RMSN")).double()
    x = sample(2, 7, 8, dtype=torch.float64)
    normed = layer_norm(x, (8,), block.n1.weight, block.n1.bias)
    u, z = linear(normed, block.in_proj.weight).chunk(2, dim=-1)
    taps = block.conv1d.weight.shape[-1]
    u = conv1d(u.mT, block.conv1d.weight, block.conv1d.bias, padding=taps - 1, groups=u.shape[-1])
    u = silu(u[..., : x.shape[1]].mT)  # Act(Con(Lin(N1(x)))), causal
    rank, n = block.dt_proj.weight.shape[1], block.d_state
    dt, B, C = linear(u, block.x_proj.weight).split([rank, n, n], dim=-1)
    delta = softplus(linear(dt, block.dt_proj.weight, block.dt_proj.bias))
    y, _ = scan_reference(u.mT, delta.mT, -block.A_log.exp(), B.mT, C.mT, block.D)
    f, p = rms_norm(y.mT, (16,), block.n2.weight, eps=1e-5), silu(z)  # Eq. 1 and 2
    torch.testing.assert_close(block(x), linear(f * p, block.out_proj.weight) + x)  # Eq. 3
    assert_shown("02_mamba_block", "MambaBlock", "selective_scan")


def test_a2_position_type_and_combination_are_arms_of_one_grid():
    """S1 §3.2–3.3, Eq. 4–7: "using different normalization techniques at different positions around
    the SSM module".
    """
    arms = {str(arm) for arm in GRID_ARMS}
    names = ["None", *NORMS]
    assert arms == {f"{before}>SSM>{after}" for before in names for after in names}
    x = sample(2, 5, 8)
    assert mn.create_norm("None", 8)(x) is x
    for arm in ("GN>SSM>None", "None>SSM>GN", "GN>SSM>GN", "RMSN>SSM>GN"):
        block = mn.MambaBlock(8, *mn.Arm.parse(arm)[:2])
        assert str(block.arm) == arm
        assert block(x).shape == x.shape
    for notebook, figure in (
        ("03_type", "fig_type"), ("04_position", "fig_position"), ("05_combination", "fig_grid")
    ):  # fmt: skip
        assert_shown(notebook, figure)


def test_a3_the_five_norms_are_torchs_on_their_partition():
    """S1 §2.2: "Batch Normalization(BN) (Wang et al., 2022) normalizes data across batch samples
    within the same channel".
    """
    x = sample(3, 6, 8, dtype=torch.float64)  # (m, L, D)
    per_channel, groups = x.mT, 4
    twins = {
        "BN": nn.BatchNorm1d(8)(per_channel.float()).mT,
        "IN": nn.InstanceNorm1d(8)(per_channel).mT,
        "GN": nn.GroupNorm(groups, 8).double()(per_channel).mT,
        "LN-DL": nn.LayerNorm((6, 8)).double()(x),
        "LN": nn.LayerNorm(8).double()(x),
        "RMSN": nn.RMSNorm(8, eps=1e-5).double()(x),
        "RMSN-DL": nn.RMSNorm((6, 8), eps=1e-5).double()(x),
    }
    for name, theirs in twins.items():
        options = {"groups": groups} if name == "GN" else {}
        ours = mn.create_norm(name, 8, **options).double()(x)
        torch.testing.assert_close(ours, theirs.double(), atol=1e-5, rtol=0)
    assert_shown("01_normalization", "create_norm")


def test_a4_normvary_mixes_the_five_by_softmax_and_keeps_a_running_mean():
    """S1 App. D, Eq. 8–16: "dynamically integrates five different normalization strategies through a
    learnable weight mechanism".
    """
    x = sample(4, 6, 8, dtype=torch.float64)
    for i, name in enumerate(["BN", "GN", "IN", "LN-DL", "RMSN-DL"]):
        norm = mn.create_norm("NormVary", 8).double()
        with torch.no_grad():  # softmax of these logits is one-hot (Eq. 13)
            for logits in (norm.mean_logits, norm.var_logits):
                logits.fill_(-1e4)[i] = 0.0
        torch.testing.assert_close(norm(x), mn.create_norm(name, 8).double()(x))
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 1)))  # Eq. 15, from 0, α = 0.9
    literal = mn.create_norm("NormVary", 8, statistics="literal").double()
    literal(x)
    variance = x.var(1, correction=0).mean(0)  # Eq. 8: without the variance of the means
    torch.testing.assert_close(literal.running_var, 0.9 + 0.1 * variance)  # Eq. 16, from 1
    assert_shown("06_normvary", "NormVary")


def test_a5_first_n2_is_fixed_then_n1_is_chosen():
    """S1 §4.4: "first need to determine the best normalization method after the SSM layer"."""
    validation = {
        (n1, n2): 0.5 + 0.1 * (n2 == "GN") + 0.05 * (n1 == "LN") + 0.3 * ((n1, n2) == ("BN", "IN"))
        for n1 in NORMS
        for n2 in NORMS
    }  # the best pair, BN→IN, has not the best N2: one step would choose it, two steps do not
    rows = [
        dict(task="t", arm=f"{n1}>SSM>{n2}", n1=n1, n2=n2, seed=0, scale="quick", status="ok",
             chance=0.1, best_val_accuracy=value, test_accuracy=1 - value)
        for (n1, n2), value in validation.items()
    ]  # fmt: skip
    assert procedure.two_step_choices(pd.DataFrame(rows)) == {"t": "LN>SSM>GN"}
    assert_shown("05_combination", "two_step_choices", "ways_to_choose")


SURVEY = {
    "before": "FMamba MLSA4Rec Zamba DiMSUM Quamba bi-CrossMamba Mamba-PTQ CMAMBA MC-SEMamba "
    "RetinexMamba CU-Mamba RSMamba FST-Mamba",
    "after": "DIFFIMP Bi-Mamba-IN Mamba2 IRSRMamba MambaHSI",
    "both": "MambaDC Bi-Mamba TiM4Rec ChangeMamba MiM-ISTD Fusion-Mamba BMAMBA2",
}


def test_a6_each_variant_of_the_survey_is_a_preset():
    """S1 §2.3: "Different normalization techniques are employed in Mamba."."""
    for place, names in SURVEY.items():
        for name in names.split():
            n1, n2, more = mn.Arm.parse(f"preset:{name}")
            assert (n1 != "None", n2 != "None", more) == (
                place in ("before", "both"),
                place in ("after", "both"),
                (),
            ), name
    assert sum(preset.section != "" for preset in PRESETS.values()) >= 25
    assert_shown("02_mamba_block", "PRESETS")


# Measurements, recipes and data: A7 to A10


def test_a7_the_weights_of_a_blocks_four_parts_have_an_l2_norm():
    """S1 App. B: "We analyzed L2 norm of the weight matrix of the whole Mamba Block, including
    in_projection layer, conv1d layer, SSM Module, out_projection layer.".
    """
    block = mn.MambaBlock(8)
    assert list(BLOCK_PARTS) == ["in_proj", "conv1d", "SSM", "out_proj"]
    squares = {part: sum(block.get_parameter(name).square().sum() for name in names)
               for part, names in BLOCK_PARTS.items()}  # fmt: skip
    expected = [float(square.detach().sqrt()) for square in squares.values()]
    assert part_norms(block) == pytest.approx(expected)
    grown = {
        "step": np.array([0, 1]),
        "part_norms": np.array([[[1.0] * 4], [[2.0, 3.0, 4.0, 5.0]]]),
    }
    figure = figures.fig_part_norms({"None>SSM>None": grown}, "planted")
    assert {2.0, 3.0, 4.0, 5.0} <= drawn_numbers(figure)  # the growth of the four parts
    assert_shown("07_diagnostics", "fig_part_norms")


def test_a8_each_task_has_the_recipe_of_appendix_c():
    """S1 App. C.3–C.6: "The model configuration included 4 layers with a hidden dimension of 128 and
    state dimension of 64.".
    """
    stated = {
        "listops": dict(n_layers=4, d_model=128, d_state=64, lr=1e-4, batch_size=32,
                        schedule="cosine_warmup"),
        "imdb": dict(n_layers=4, d_model=128, d_state=64, lr=1e-4, weight_decay=0.1,
                     schedule="constant_warmup", warmup_steps=2000, batch_size=32, seed=2222),
        "cifar100": dict(n_layers=4, d_model=64, lr=1e-3, weight_decay=0.1, warmup_steps=2000,
                         schedule="cosine_warmup", batch_size=50),
        "pathfinder64": dict(n_layers=6, d_model=128, lr=2e-4, weight_decay=0.05,
                             betas=(0.9, 0.95), schedule="constant_warmup", warmup_steps=5000),
    }  # fmt: skip
    for task, fields in stated.items():
        config = study.base_config(task, "paper")
        assert {name: getattr(config, name) for name in fields} == fields, task
        assert (config.d_conv, config.expand) == (4, 2)
    how = dict(lr=1.0, steps=100, warmup_steps=10)
    constant, cosine = (
        [learning_rate(step, schedule=f"{name}_warmup", **how) for step in (5, 10, 55, 100)]
        for name in ("constant", "cosine")
    )
    assert constant == [0.5, 1, 1, 1]
    assert cosine == pytest.approx([0.5, 1, 0.5, 0], abs=1e-12)
    assert_shown("08_validation", "recipes")


def test_a9_every_data_set_is_a_task_with_a_recipe():
    """S1 §4.1, App. C: "For long sequence modeling, we use the Breakfast dataset (Kuehne et al.)."."""
    names = {"breakfast", "imagenet100", "imagenet1k", "listops", "imdb", "cifar10", "cifar100"}
    names |= {"pathfinder64", "cifar10_images", "cifar100_images", "paths16", "paths64"}
    assert names <= set(study.TASKS)
    assert names <= set(PAPER)
    listops = study.load_task("listops", "smoke", 0).train
    images = study.load_task("paths16", "smoke", 0).train
    assert len(listops)
    assert images.inputs.shape[1:] == (256, 1)
    assert set(images.labels.tolist()) == {0, 1}
    assert_shown("08_validation", "tasks_of_paper")


def test_a10_an_image_becomes_a_sequence_of_patches():
    """S1 §2.1: "the image is first divided into h × w patches, and then these patches are converted
    into a sequence of features with positional encoding added".
    """
    model = ImageClassifier(10, in_channels=3, d_model=8, n_layers=1, patch=2,
                            positional="learned", positions=(4, 6))  # fmt: skip
    with mn.record_sites(model, "n1") as recorder:
        assert model(sample(2, 8, 12, 3)).shape == (2, 10)
    assert recorder.values[0].value.numel() == 2 * (4 * 6) * 8  # two images of 4 × 6 patches
    image = sample(1, 8, 4, 6)
    torch.testing.assert_close(cross_merge(cross_scan(image), 4, 6), 4 * image)
    assert_shown("09_vision", "cross_scan", "cross_merge", "fig_cross_scan")


# Tables and figures


def test_t1_table_1_stands_beside_our_runs_with_its_second_ln_read_as_in(grid):
    """S1 Table 1: "Performance of sequence modeling and image classification tasks with different
    normalizations applied before and after SSM.".
    """
    table = paper.paper_values("sequence").query("source == 'Table 1'").set_index("arm")
    assert len(table) == 10
    printed = {
        "IN>SSM>None": 0.109,
        "None>SSM>IN": 0.07,
        "LN>SSM>None": 0.571,
        "None>SSM>GN": 0.701,
    }
    assert table.accuracy[list(printed)].to_dict() == printed
    assert table.printed["IN>SSM>None"].startswith("LN")
    beside = run_tables.beside_paper(grid).set_index("arm")
    assert beside.paper["LN>SSM>None"] == 0.865
    assert round(100 * beside.ours["LN>SSM>None"], 1) == mean_of(grid, "LN>SSM>None")
    assert_shown("04_position", "beside_paper")
    assert_shown("09_vision", "beside_paper")


def test_t2_table_2_has_four_rows_with_what_ran_or_the_command_that_runs_it():
    """S1 Table 2: "Comparison of test set accuracy on the LRA Benchmark.".

    Two tasks have runs, the others a command and hours.
    """
    runs = [
        dict(task=task, arm=arm, seed=seed, scale="evening", test_accuracy=value + 0.01 * seed)
        for task in ("listops", "paths16")
        for arm, value in ((contrasts.ORIGINAL, 0.4), (contrasts.PROPOSAL, 0.45))
        for seed in range(6)
    ]
    table = contrasts.table_2_beside_runs(pd.DataFrame(runs))
    assert list(table.index) == ["ListOps", "IMDB", "CIFAR-100", "Path-64"]
    assert table["the paper, %"]["IMDB"] == "81.27 → 83.71"
    assert table["ours, %"]["ListOps"] == table["ours, %"]["Path-64"] == "42.5 → 47.5"
    assert table["our gain"]["Path-64"].startswith("+5.0 points")
    for row, task in (("IMDB", "imdb"), ("CIFAR-100", "cifar100")):
        assert f"--tasks {task} --scale paper" in table["run here"][row]
    assert_shown("08_validation", "table_2_beside_runs", "printed_table")


def test_t3_the_taxonomy_is_that_of_table_3():
    """S1 App. A, Table 3: "Details of mainstream normalization techniques."."""
    ours = norm_catalog.taxonomy_table()
    assert list(paper.TABLE_3) == ["BN", "IN", "GN", "LN", "RMSN"]
    for name, (partition, operation, recovery) in paper.TABLE_3.items():
        row = ours.loc[f"{name}-DL" if name in ("LN", "RMSN") else name]
        assert (partition, operation, recovery) == (row.NAP, row.NOP, row.NRR), name
    assert_shown("01_normalization", "taxonomy_table", "TABLE_3")


def test_f1_accuracy_without_a_norm_with_one_and_with_two(grid):
    """S1 Figure 1: "The red line represents average performance without normalization, the yellow
    line shows with single normalization, and the blue line represents using our proposed
    combination normalization strategy.".
    """
    figure = figures.fig_headline(grid)
    assert {"no norm", "single norm", "combination"} <= set(texts_of(figure))
    assert mean_of(grid, "LN>SSM>BN") in drawn_numbers(figure)
    assert_shown("05_combination", "fig_headline")
    assert_shown("09_vision", "fig_headline")


def test_f2_which_values_share_a_statistic():
    """S1 Figure 2: "m represents the batch axis, d the channel axis, L the sequence length axis"."""
    titles = [ax.get_title() for ax in figures.fig_axes().axes]
    assert set(NORMS) <= set(titles)
    assert_shown("01_normalization", "fig_axes")


def test_f3_the_four_patterns_of_a_block():
    """S1 Figure 3: "(a) normalization before SSM and (b) normalization after SSM.". The type pattern
    adds "(c) without normalization and (d) single normalization before and after SSM".
    """
    arms = ["LN>SSM>None", "None>SSM>LN", "None>SSM>None", "LN>SSM>LN"]
    titles = [ax.get_title(loc="left") for ax in figures.fig_block(*arms).axes]
    assert titles == ["LN→None", "None→LN", "None→None", "LN→LN"]
    assert_shown("04_position", "fig_block")


def test_f4_the_block_as_a_diagram():
    """S1 Figure 4: "Framework for analyzing normalization in Mamba."."""
    texts = " ".join(texts_of(figures.fig_block("RMSN>SSM>GN")))
    assert all(part in texts for part in ("SSM", "Lin", "Conv", "RMSN", "GN", "⊗", "⊕"))
    assert_shown("02_mamba_block", "fig_block")


def test_f5_accuracy_by_type(grid):
    """S1 Figure 5: "Performance of different type normalization methods on sequence analysis and
    image classification datasets.".
    """
    figure = figures.fig_type(grid)
    assert set(NORMS) <= set(texts_of(figure))
    assert {mean_of(grid, f"{norm}>SSM>{norm}") for norm in NORMS} <= drawn_numbers(figure)
    assert_shown("03_type", "fig_type")
    assert_shown("09_vision", "fig_type")


def test_f6_accuracy_by_position(grid):
    """S1 Figure 6: "The lines connecting the data points reflect the numerical relationship in model
    performance results of the normalization before and after SSM.".
    """
    figure = figures.fig_position(grid)
    assert all(name in " ".join(texts_of(figure)) for name in NORMS)
    drawn = drawn_numbers(figure)
    for norm in NORMS:
        assert {mean_of(grid, f"{norm}>SSM>None"), mean_of(grid, f"None>SSM>{norm}")} <= drawn
    assert_shown("04_position", "fig_position")
    assert_shown("09_vision", "fig_position")


def test_f7_the_same_norm_twice_against_the_best_pair(grid):
    """S1 Figure 7: "This figure compares the results of using single normalization (type) and best
    normalization combinations (combination).".
    """
    figure = figures.fig_single_vs_best(grid)
    assert set(NORMS) <= set(texts_of(figure))
    assert mean_of(grid, "BN>SSM>BN") in drawn_numbers(figure)
    assert_shown("05_combination", "fig_single_vs_best")
    assert_shown("09_vision", "fig_single_vs_best")


def test_f8_accuracy_by_n2_over_the_other_four_norms(grid):
    """S1 Figure 8: "The x-axis represents the normalization applied after the SSM, and the y-axis
    represents the average performance of the other four normalizations before SSM.".
    """
    figure = figures.fig_n2_box(grid)
    assert set(NORMS) <= {label.get_text() for label in figure.axes[0].get_xticklabels()}
    assert {mean_of(grid, f"{n1}>SSM>GN") for n1 in NORMS if n1 != "GN"} <= drawn_numbers(figure)
    assert_shown("05_combination", "fig_n2_box")
    assert_shown("09_vision", "fig_n2_box")


def test_f9_outputs_over_depth_token_by_token_and_element_by_element():
    """S1 Figure 9: "Plot of the L2 norm of the output tensors from each Mamba layer as a function of
    the layer number".
    """
    model = mn.SequenceClassifier(10, in_features=1, d_model=8, n_layers=3, arm="None>SSM>BN")
    x = sample(4, 6, 1)
    tokens = pd.DataFrame(token_norms(model, x)).query("site == 'residual'")
    with torch.no_grad(), mn.record_sites(model, "residual") as recorder:
        model(x)
    outputs = elements.block_outputs(model, x, None)
    for depth, (_, _, _, value) in enumerate(recorder.values, start=1):
        ours = tokens[tokens.depth == depth].l2.to_numpy()
        np.testing.assert_allclose(ours, value.norm(dim=-1).flatten(), rtol=1e-5)
        median = elements.distribution(outputs[depth - 1])["median"]
        assert median == pytest.approx(np.median(value.abs().double()))
    points = elements.elements_by_depth("evening")
    assert points.seed.nunique() == 8
    titles = [ax.get_title(loc="left") for ax in figures.fig_elements(points).axes]
    assert titles == ["None→None", "BN→None", "None→BN", "BN→BN"]
    assert_shown("07_diagnostics", "fig_outputs", "fig_elements")


def test_f10_singular_values_of_out_proj_by_phase():
    """S1 Figure 10: "Singular values of the weights (output layer) in different Mamba layers."."""
    weight = sample(64, 128)
    sigma = singular_values(weight)
    np.testing.assert_allclose(sigma, np.linalg.svd(weight.numpy(), compute_uv=False), rtol=1e-5)
    low, high = marchenko_pastur((64, 128), 1.0)
    assert 0.9 * low < sigma[-1] < sigma[0] < 1.1 * high
    arrays = {
        "step": np.array([0, 10, 20]),
        "singular_values": np.ones((3, 2, 4)) * [[[1]], [[2]], [[3]]],
    }
    phases, spectra = diagnostics.singular_value_phases(arrays, 20, "failing")
    assert phases == {"early": 0, "normal": 10, "failing": 20}
    figure = figures.fig_singular_values(spectra, np.full((2, 4), 1.5), (0.5, 2.5), "planted")
    assert {1.0, 2.0, 3.0, 1.5} <= drawn_numbers(figure)
    assert_shown("07_diagnostics", "fig_singular_values", "singular_value_phases")
