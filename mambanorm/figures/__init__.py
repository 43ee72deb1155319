"""Data → figures, one function a figure; nothing here trains, and nothing is shown or saved by itself.

    diagrams.py      Figures 2, 3, 4 and the cross-scan: from the registry, the arm notation and the scan's order
    accuracy.py      Figures 1, 5–8: from the run frame
    comparisons.py   the 6×6 grid, curves, paired differences, Table 2, IN taken apart: from run frames, tables
    diagnostics.py   Figures 9, 10, Appendix B, NormVary's mixture: from diagnostics arrays
    concepts.py      from mambanorm.lessons: descent, invariances, batch norm, memory, a block without a part
    lessons.py       one row before and after a norm, what the SSM remembers, signal sizes, costs
    autonorm.py      S2: what the selectors choose, robustness, latency
    sheet.py         the norms on one A4 page, from the registry, to print
    advice.py        mistakes beside their mended twins, values over batch, rate and depth
    clinic.py        what one batch shows of a model, the steps before a failure, and what cures it
    speed.py         what a training step costs: from the frame of `mambanorm bench`
    beyond.py        norms at the sites of later models, ladders of learning rates
    budget.py        a claim over the training budget, or over the size of the model: from claims.over_budget
    verdicts.py      every claim with its verdict, the comparisons of one claim: from mambanorm.claims
    *_view.py        the pictures of the explorers (mambanorm/widgets/): a norm, an arm, a scan, runs while they train,
                     a cell of the grid, depth × gain, a mixture
    style.py         colours, sizes, captions: the palette is keyed by the names of the registry

Every function returns a matplotlib Figure that a notebook displays as the value of a cell.
"""

from mambanorm.figures.accuracy import (
    fig_headline,
    fig_n2_box,
    fig_position,
    fig_single_vs_best,
    fig_type,
)
from mambanorm.figures.advice import fig_mistakes, fig_over
from mambanorm.figures.arm_view import fig_arm_view
from mambanorm.figures.autonorm import fig_latency, fig_robustness, fig_selector
from mambanorm.figures.beyond import fig_ladder, fig_site_gains
from mambanorm.figures.budget import fig_budget
from mambanorm.figures.cell_view import fig_cell_view
from mambanorm.figures.clinic import fig_clinic, fig_cures, fig_failure
from mambanorm.figures.comparisons import fig_curves, fig_grid, fig_halves, fig_pairs, fig_validation
from mambanorm.figures.concepts import fig_batch_norm, fig_descent, fig_invariances, fig_memory_of_delta, fig_parts
from mambanorm.figures.diagnostics import (
    fig_mixture,
    fig_outputs,
    fig_part_norms,
    fig_sigma1,
    fig_singular_values,
    fig_token_norms,
)
from mambanorm.figures.diagrams import fig_axes, fig_block, fig_cross_scan, fig_patterns
from mambanorm.figures.growth_view import fig_growth_view
from mambanorm.figures.lessons import example_batch, fig_costs, fig_effect, fig_memory, fig_rows, fig_sites
from mambanorm.figures.live_view import fig_live_view
from mambanorm.figures.mixture_view import fig_mixture_view
from mambanorm.figures.norm_view import fig_norm_view
from mambanorm.figures.scan_view import fig_scan_view
from mambanorm.figures.sheet import fig_sheet, save_sheet
from mambanorm.figures.speed import fig_scaling, fig_speed
from mambanorm.figures.style import PALETTE, norm_colour
from mambanorm.figures.verdicts import fig_claim, fig_verdicts

__all__ = [
    "PALETTE",
    "example_batch",
    "fig_arm_view",
    "fig_axes",
    "fig_batch_norm",
    "fig_block",
    "fig_budget",
    "fig_cell_view",
    "fig_claim",
    "fig_clinic",
    "fig_costs",
    "fig_cross_scan",
    "fig_cures",
    "fig_curves",
    "fig_descent",
    "fig_effect",
    "fig_failure",
    "fig_grid",
    "fig_growth_view",
    "fig_halves",
    "fig_headline",
    "fig_invariances",
    "fig_ladder",
    "fig_latency",
    "fig_live_view",
    "fig_memory",
    "fig_memory_of_delta",
    "fig_mistakes",
    "fig_mixture",
    "fig_mixture_view",
    "fig_n2_box",
    "fig_norm_view",
    "fig_outputs",
    "fig_over",
    "fig_pairs",
    "fig_part_norms",
    "fig_parts",
    "fig_patterns",
    "fig_position",
    "fig_robustness",
    "fig_rows",
    "fig_scaling",
    "fig_scan_view",
    "fig_selector",
    "fig_sheet",
    "fig_sigma1",
    "fig_single_vs_best",
    "fig_singular_values",
    "fig_site_gains",
    "fig_sites",
    "fig_speed",
    "fig_token_norms",
    "fig_type",
    "fig_validation",
    "fig_verdicts",
    "norm_colour",
    "save_sheet",
]
