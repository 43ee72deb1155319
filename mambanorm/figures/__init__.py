"""Data → figures, one function a figure; nothing here trains, and nothing is shown or saved by itself.

    accuracy.py      Figures 1 and 5–8, Table 2, IN taken apart, accuracy against time: from the run frame
    comparisons.py   the 6×6 grid, differences with their intervals, effects over the budget
    lines.py         lines over steps, rates, severities and blocks: training, Figures 9 and 10, NormVary's mixture
    lessons.py       from mambanorm.lessons: descent, invariances, memory, a block without a part
    clinic.py        what one batch shows of a model, the steps before a failure, and what cures it
    diagrams.py      Figures 2, 3, 4, the cross-scan, the norms on one A4 page: from the registry and the arm notation
    verdicts.py      every claim with its verdict, the comparisons of one claim: from mambanorm.claims
    explorers.py     the pictures of the explorers (mambanorm/widgets/)
    colours.py       how norms and arms are told apart;   style.py: sizes, captions, how a figure shows itself

Every function returns a matplotlib Figure that a notebook displays as the value of a cell. A figure's file is imported
when the figure is first asked for, so that nobody waits for seaborn who draws without it.
"""

from mambanorm.basics.settings import names_of

PLACES, __getattr__, __dir__ = names_of(
    __name__,
    {
        "accuracy": "fig_halves fig_headline fig_latency fig_n2_box fig_position fig_single_vs_best fig_type "
        "fig_validation",
        "comparisons": "fig_budget fig_card fig_grid fig_pairs fig_site_gains",
        "lines": "fig_curves fig_mistakes fig_mixture fig_outputs fig_over fig_part_norms "
        "fig_singular_values fig_token_norms",
        "lessons": "example_batch fig_costs fig_descent fig_effect fig_invariances fig_memory fig_parts fig_rows "
        "fig_selector",
        "clinic": "fig_clinic fig_cures fig_failure",
        "diagrams": "fig_axes fig_block fig_cross_scan fig_sheet save_sheet",
        "verdicts": "fig_claim fig_verdicts",
        "explorers": "fig_arm_view fig_cell_view fig_norm_view fig_scan_view",
        "colours": "PALETTE norm_colour",
    },
)
"""What this room offers → the file that has it."""

__all__ = sorted(PLACES)
