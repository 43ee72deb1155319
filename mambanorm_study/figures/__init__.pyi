"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.figures.accuracy import (
    fig_halves as fig_halves,
    fig_headline as fig_headline,
    fig_n2_box as fig_n2_box,
    fig_position as fig_position,
    fig_proposal as fig_proposal,
    fig_single_vs_best as fig_single_vs_best,
    fig_type as fig_type,
)
from mambanorm_study.figures.colours import (
    PALETTE as PALETTE,
    norm_colour as norm_colour,
)
from mambanorm_study.figures.comparisons import (
    fig_card as fig_card,
    fig_grid as fig_grid,
    fig_pairs as fig_pairs,
    fig_site_gains as fig_site_gains,
)
from mambanorm_study.figures.diagrams import (
    fig_axes as fig_axes,
    fig_block as fig_block,
    fig_cross_scan as fig_cross_scan,
)
from mambanorm_study.figures.hero import fig_hero as fig_hero
from mambanorm_study.figures.inside import (
    fig_elements as fig_elements,
    fig_mixture as fig_mixture,
    fig_outputs as fig_outputs,
    fig_outputs_of_norms as fig_outputs_of_norms,
    fig_part_norms as fig_part_norms,
    fig_singular_values as fig_singular_values,
    fig_token_norms as fig_token_norms,
)
from mambanorm_study.figures.lessons import (
    example_batch as example_batch,
    fig_costs as fig_costs,
    fig_descent as fig_descent,
    fig_gan as fig_gan,
    fig_invariances as fig_invariances,
    fig_loss_ranges as fig_loss_ranges,
    fig_memory as fig_memory,
    fig_missing_parts as fig_missing_parts,
    fig_norm_effects as fig_norm_effects,
    fig_rows as fig_rows,
    fig_selector as fig_selector,
)
from mambanorm_study.figures.lines import (
    fig_curves as fig_curves,
    fig_lines as fig_lines,
    fig_mistakes as fig_mistakes,
)
from mambanorm_study.figures.sheet import (
    fig_sheet as fig_sheet,
    save_sheet as save_sheet,
)
from mambanorm_study.figures.verdicts import (
    fig_budget as fig_budget,
    fig_claim as fig_claim,
    fig_verdicts as fig_verdicts,
)
