"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.figures.accuracy import (
    fig_halves as fig_halves,
)
from mambanorm_study.figures.accuracy import (
    fig_headline as fig_headline,
)
from mambanorm_study.figures.accuracy import (
    fig_latency as fig_latency,
)
from mambanorm_study.figures.accuracy import (
    fig_n2_box as fig_n2_box,
)
from mambanorm_study.figures.accuracy import (
    fig_position as fig_position,
)
from mambanorm_study.figures.accuracy import (
    fig_single_vs_best as fig_single_vs_best,
)
from mambanorm_study.figures.accuracy import (
    fig_type as fig_type,
)
from mambanorm_study.figures.accuracy import (
    fig_validation as fig_validation,
)
from mambanorm_study.figures.colours import (
    PALETTE as PALETTE,
)
from mambanorm_study.figures.colours import (
    norm_colour as norm_colour,
)
from mambanorm_study.figures.comparisons import (
    fig_card as fig_card,
)
from mambanorm_study.figures.comparisons import (
    fig_grid as fig_grid,
)
from mambanorm_study.figures.comparisons import (
    fig_pairs as fig_pairs,
)
from mambanorm_study.figures.comparisons import (
    fig_site_gains as fig_site_gains,
)
from mambanorm_study.figures.diagrams import (
    fig_axes as fig_axes,
)
from mambanorm_study.figures.diagrams import (
    fig_block as fig_block,
)
from mambanorm_study.figures.diagrams import (
    fig_cross_scan as fig_cross_scan,
)
from mambanorm_study.figures.explorers import (
    fig_arm_view as fig_arm_view,
)
from mambanorm_study.figures.explorers import (
    fig_cell_view as fig_cell_view,
)
from mambanorm_study.figures.explorers import (
    fig_norm_view as fig_norm_view,
)
from mambanorm_study.figures.explorers import (
    fig_scan_view as fig_scan_view,
)
from mambanorm_study.figures.inside import (
    fig_mixture as fig_mixture,
)
from mambanorm_study.figures.inside import (
    fig_outputs as fig_outputs,
)
from mambanorm_study.figures.inside import (
    fig_part_norms as fig_part_norms,
)
from mambanorm_study.figures.inside import (
    fig_singular_values as fig_singular_values,
)
from mambanorm_study.figures.inside import (
    fig_token_norms as fig_token_norms,
)
from mambanorm_study.figures.lessons import (
    example_batch as example_batch,
)
from mambanorm_study.figures.lessons import (
    fig_costs as fig_costs,
)
from mambanorm_study.figures.lessons import (
    fig_descent as fig_descent,
)
from mambanorm_study.figures.lessons import (
    fig_effect as fig_effect,
)
from mambanorm_study.figures.lessons import (
    fig_invariances as fig_invariances,
)
from mambanorm_study.figures.lessons import (
    fig_memory as fig_memory,
)
from mambanorm_study.figures.lessons import (
    fig_parts as fig_parts,
)
from mambanorm_study.figures.lessons import (
    fig_rows as fig_rows,
)
from mambanorm_study.figures.lessons import (
    fig_selector as fig_selector,
)
from mambanorm_study.figures.lines import (
    fig_curves as fig_curves,
)
from mambanorm_study.figures.lines import (
    fig_mistakes as fig_mistakes,
)
from mambanorm_study.figures.lines import (
    fig_over as fig_over,
)
from mambanorm_study.figures.sheet import (
    fig_sheet as fig_sheet,
)
from mambanorm_study.figures.sheet import (
    save_sheet as save_sheet,
)
from mambanorm_study.figures.verdicts import (
    fig_budget as fig_budget,
)
from mambanorm_study.figures.verdicts import (
    fig_claim as fig_claim,
)
from mambanorm_study.figures.verdicts import (
    fig_verdicts as fig_verdicts,
)
