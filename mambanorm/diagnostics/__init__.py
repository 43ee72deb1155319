"""Looking inside: hooks in, data out. Nothing here trains, plots or prints.

    recording.py           record_sites: every site of every block while a model runs, yours too
    l2_over_depth.py    token_norms, the data of Figure 9, and the law by which outputs grow
    nonfinite.py           Search: the first value of a pass that is not finite, in any model
    weights.py             WeightLog, the data of Figures 9 and 10 and of Appendix B while a model trains; spectra,
                           weight norms, loss spikes
    selectors.py           what a NormSelector chooses, by layer, class and position, and while it trains

Glossary: σ_i singular values, stable rank ‖W‖_F²/σ_1², effective rank exp(entropy of σ_i/Σσ).
"""

from mambanorm.diagnostics.l2_over_depth import (
    EXPONENTIAL,
    FLAT,
    growth,
    growth_fits,
    growth_table,
    norm_quantiles,
    norms_by_depth,
    token_norms,
)
from mambanorm.diagnostics.recording import Recorder, blocks_of, left_as_found, record_sites
from mambanorm.diagnostics.selectors import SelectorLog, selector_weights
from mambanorm.diagnostics.weights import (
    BLOCK_PARTS,
    WeightLog,
    marchenko_pastur,
    mixture_moves,
    mixtures_of,
    part_norms,
    sigma_history,
    singular_values,
    spectra,
    spectrum_at,
    spectrum_facts,
    spectrum_spread,
    spike_score,
    weight_table,
)

record = record_sites  # the older name; the command `record` is another thing: it records results

__all__ = [
    "BLOCK_PARTS",
    "EXPONENTIAL",
    "FLAT",
    "Recorder",
    "SelectorLog",
    "WeightLog",
    "blocks_of",
    "growth",
    "growth_fits",
    "growth_table",
    "left_as_found",
    "marchenko_pastur",
    "mixture_moves",
    "mixtures_of",
    "norm_quantiles",
    "norms_by_depth",
    "part_norms",
    "record",
    "record_sites",
    "selector_weights",
    "sigma_history",
    "singular_values",
    "spectra",
    "spectrum_at",
    "spectrum_facts",
    "spectrum_spread",
    "spike_score",
    "token_norms",
    "weight_table",
]
