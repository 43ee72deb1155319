"""Explorers of recorded data: a run that ends in NaN, larger weights, few seeds, and exchanged
rows.
"""

from functools import lru_cache, partial

import ipywidgets as w
import numpy as np
from matplotlib.axes import Axes

from mambanorm.arms import Arm
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.figures.colours import BEST, COMBINATION, GREY, INK, NO_NORM, norm_colour
from mambanorm_study.figures.style import StudyFigure, finish, jitter, quick_figure, styled
from mambanorm_study.lessons import explorable
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import label
from mambanorm_study.widgets.explorers import SLIDER, Explorer

# Name of a number format → log₁₀ of its largest number.
LIMITS = {"float16: 65,504": 4.8, "float32: 3·10³⁸": 38.5}
TOP = 40.0  # where values that are not finite are drawn
SITE_COLOURS = dict(
    zip(
        explorable.WATCHED,
        ("#8A8A8A", "#CC79A7", "#0072B2", "#D55E00", "#009E73", INK),
        strict=True,
    )
)


def _log10(values: np.ndarray) -> np.ndarray:
    """Return log₁₀ of the values, with TOP in place of infinity."""
    return np.log10(np.clip(values, 1e-3, 10.0**TOP))


def _draw_limits(ax: Axes) -> None:
    """Draw the largest numbers of the formats, and label the axis in powers of ten."""
    for name, exponent in LIMITS.items():
        ax.axhline(exponent, color=NO_NORM, linewidth=1, linestyle="--")
        ax.text(
            0.01,
            exponent + 0.5,
            name,
            color=NO_NORM,
            fontsize=7.5,
            transform=ax.get_yaxis_transform(),
        )
    ax.set(ylim=(-2, TOP + 2), ylabel="largest value, power of ten")


@styled
def draw_failing_run(step: int) -> StudyFigure:
    """Return a figure of a run without norms that fails: the largest value at each site over the
    depth at one step, and the largest value of the whole model over the steps.
    """
    runs = _failing_run()
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.2, wspace=0.22)
    fig, axes = quick_figure([["depth", "steps"]], height=3.9, margins=margins)
    now = runs[runs.step == step]
    for site, rows in now.groupby("site", sort=False):
        axes["depth"].plot(
            rows.depth, _log10(rows.largest.to_numpy()), "o-", color=SITE_COLOURS[site], label=site
        )
    axes["depth"].legend(ncols=2, loc="upper left", bbox_to_anchor=(0, 0.9), fontsize=7.5)
    axes["depth"].set(title=f"every site after step {step}", xlabel="block")
    worst = runs.groupby("step").largest.max()
    axes["steps"].plot(worst.index, _log10(worst.to_numpy()), color=GREY)
    axes["steps"].plot(step, _log10(worst.loc[step]), "o", color=BEST, markersize=8)
    axes["steps"].set(title="the largest value of all", xlabel="training step")
    for ax in axes.values():
        _draw_limits(ax)
    return finish(
        fig,
        "A run that ends in NaN, step by step",
        f"None→None, 8 blocks, mnist1d, seed {explorable.FAILING_SEED}, learning rate 0.006",
        "recorded: the largest magnitude over 1,000 training rows; at the top: not finite",
        "the training itself ends at step 26, on its own batch",
    )


def explore_failing_run() -> Explorer:
    """Move the training step of a recorded run that fails. The picture shows the largest value at
    every site of every block, and the largest numbers of float16 and float32.
    """
    last = int(_failing_run().step.max())
    return Explorer(
        draw_failing_run, step=w.IntSlider(last - 13, min=0, max=last, description="step", **SLIDER)
    )


@lru_cache(1)
def _failing_run():
    return explorable.failing_run()


@styled
def draw_larger_weights(blocks: int, gain: float) -> StudyFigure:
    """Return a figure of the largest token over the depth, one line per arm, in untrained models
    whose weights are multiplied by a gain.
    """
    runs = _larger_weights()
    margins = dict(left=0.07, right=0.8, top=0.86, bottom=0.19)
    fig, axes = quick_figure([["ax"]], height=3.9, margins=margins)
    shown = runs[(runs.n_layers == blocks) & (runs.gain == gain)]
    for arm, rows in shown.groupby("arm", sort=False):
        parsed = Arm.parse(arm)
        colour = norm_colour(parsed.n1 if parsed.n2 == "None" else parsed.n2)
        style = {True: "-", False: "--"}[parsed.n1 == "None" or parsed.n1 == parsed.n2]
        marker = "s" if parsed.n1 == parsed.n2 != "None" else "o"
        values = _log10(rows.largest.to_numpy())
        axes["ax"].plot(
            rows.depth, values, style, color=colour, marker=marker, markersize=4, label=label(arm)
        )
    axes["ax"].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes["ax"].set(xlabel="block", title=f"{blocks} blocks, weights × {gain:g}")
    _draw_limits(axes["ax"])
    return finish(
        fig,
        "Which arms explode when the weights grow?",
        "untrained models of the digits, scale quick, seed 0, train mode",
        "every in_proj and out_proj is multiplied; the largest token of the residual stream",
    )


def explore_larger_weights() -> Explorer:
    """Choose the number of blocks and the factor of the weights. The picture shows for each arm how
    the largest token grows over the depth, and the largest numbers of float16 and float32.
    """
    choose = partial(w.SelectionSlider, **SLIDER)
    return Explorer(
        draw_larger_weights,
        blocks=choose(value=24, options=list(explorable.DEPTHS), description="blocks"),
        gain=choose(value=4.0, options=list(explorable.GAINS), description="weights ×"),
    )


@lru_cache(1)
def _larger_weights():
    return explorable.larger_weights()


# Pairs of arms with 24 test seeds on curves.
PAIRS = {
    f"{label(a)} − {label(b)}": (a, b)
    for a, b in (
        ("None>SSM>GN", "GN>SSM>None"),
        ("NormVary>SSM>GN", "None>SSM>GN"),
        ("NormVary>SSM>GN", "RMSN>SSM>GN"),
        ("NormVary>SSM>GN", "RMSN>SSM>None"),
    )
}
DRAWS = 2_000


@lru_cache(8)
def _differences(pair: str) -> np.ndarray:
    """Return the difference of a pair's test accuracies for each of its seeds, in points."""
    evidence = Evidence(recorded("evening"), "evening")
    score = evidence.runs_of_arms(PAIRS[pair], "curves").columns["score"]
    return score[0] - score[1]


def _draws(pair: str, seeds: int) -> np.ndarray:
    """Return DRAWS draws of a few of the pair's seeds, as an array of positions (DRAWS, seeds)."""
    random = np.random.default_rng(0).random((DRAWS, len(_differences(pair))))
    return random.argsort(axis=1)[:, :seeds]


def wrong_share(pair: str, seeds: int) -> float:
    """Return the share of the draws of a few seeds whose mean has another sign than the mean of all
    seeds.
    """
    means = _differences(pair)[_draws(pair, seeds)].mean(axis=1)
    return float((np.sign(means) != np.sign(_differences(pair).mean())).mean())


@styled
def draw_seed_lottery(pair: str, seeds: int, number: int) -> StudyFigure:
    """Return a figure of one draw of a few seeds out of all recorded ones, and of the means of many
    such draws.

    number: which of the draws is shown, counted from 1.
    """
    differences, order = _differences(pair), _draws(pair, seeds)
    means, chosen, truth = differences[order].mean(axis=1), order[number - 1], differences.mean()
    wrong = wrong_share(pair, seeds)
    margins = dict(left=0.05, right=0.985, top=0.87, bottom=0.2, wspace=0.14)
    fig, axes = quick_figure([["seeds", "means"]], height=3.4, margins=margins)
    y = jitter(len(differences), 0.6)
    axes["seeds"].plot(differences, y, "o", color=GREY, alpha=0.5, markersize=5)
    axes["seeds"].plot(differences[chosen], y[chosen], "o", color=BEST, markersize=8)
    axes["seeds"].axvline(means[number - 1], color=BEST, linewidth=2)
    axes["seeds"].set(title=f"draw {number}: mean {_points(means[number - 1])}", yticks=[])
    axes["seeds"].set_ylabel("recorded seeds, in no order")
    axes["means"].hist(means, bins=40, color=GREY, alpha=0.6)
    axes["means"].axvline(truth, color=COMBINATION, linewidth=2)
    axes["means"].set(title=f"{wrong:.0%} of the draws name the wrong arm", yticks=[])
    axes["means"].set_ylabel("number of draws")
    for ax in axes.values():
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.set(xlabel="difference in test accuracy (points)", ylim=ax.get_ylim())
        ax.set_xlim(differences.min() - 0.5, differences.max() + 0.5)
    return finish(
        fig,
        f"A lottery of seeds: {pair}",
        f"curves, {len(differences)} recorded seeds; blue: the mean of all, {_points(truth)}",
        f"{DRAWS:,} draws of {seeds} without replacement",
    )


def _points(difference: float) -> str:
    return f"{difference:+.1f} points".replace("-", "−")


def explore_seed_lottery() -> Explorer:
    """Draw a few of the recorded seeds of two arms, as a study with few seeds does. The picture
    shows the draw, and how often such a draw names the wrong arm.
    """
    return Explorer(
        draw_seed_lottery,
        pair=w.Dropdown(options=list(PAIRS), description="arms"),
        seeds=w.IntSlider(3, min=1, max=12, description="seeds", **SLIDER),
        number=w.IntSlider(1, min=1, max=100, description="draw", **SLIDER),
    )


@styled
def draw_neighbours(norm: str, mode: str, exchanged: int) -> StudyFigure:
    """Return a figure of the class probabilities of one row, before and after other rows of its
    batch are exchanged.
    """
    runs = _neighbours()
    runs = runs[(runs.norm == norm) & (runs["mode"] == mode)].set_index("exchanged")
    classes, target = [str(digit) for digit in range(10)], str(runs.label.iloc[0])
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.2, wspace=0.2)
    fig, axes = quick_figure([["classes", "path"]], height=3.6, margins=margins)
    x = np.arange(10)
    axes["classes"].bar(x - 0.2, 100 * runs.loc[0, classes], 0.4, color=GREY, label="as it was")
    axes["classes"].bar(
        x + 0.2, 100 * runs.loc[exchanged, classes], 0.4, color=norm_colour(norm), label="now"
    )
    axes["classes"].set_xticks(x, classes)
    axes["classes"].set(ylim=(0, 100), xlabel="class", ylabel="probability (%)", title="row 1")
    axes["classes"].legend(loc="upper right")
    axes["path"].plot(runs.index, 100 * runs[target], "o-", color=norm_colour(norm), markersize=4)
    axes["path"].plot(exchanged, 100 * runs.loc[exchanged, target], "o", color=BEST, markersize=9)
    axes["path"].set(ylim=(0, 100), xlabel="exchanged rows", title=f"its true class, {target}")
    axes["path"].set_ylabel("probability (%)")
    return finish(
        fig,
        f"Whose neighbours? {norm}→{norm}, {mode} mode",
        f"one model of the digits per norm, scale quick, seed 0; a batch of {explorable.ROWS} rows",
        "row 1 never changes; the other rows are exchanged for rows of one class",
    )


def explore_neighbours() -> Explorer:
    """Exchange the other rows of a batch, and watch the prediction for the first row. Under BN in
    train mode it changes, although the row does not.
    """
    return Explorer(
        draw_neighbours,
        norm=w.Dropdown(options=list(explorable.NEIGHBOUR_NORMS), description="norm"),
        mode=w.Dropdown(options=["train", "eval"], description="mode"),
        exchanged=w.IntSlider(8, min=0, max=explorable.ROWS - 1, description="exchanged", **SLIDER),
    )


@lru_cache(1)
def _neighbours():
    return explorable.neighbours()
