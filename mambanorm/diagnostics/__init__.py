"""Looking inside: hooks in, data out. Nothing here trains, plots or prints.

recording.py    inspected: the one inspector by hooks;   record_sites: every site of every block of a running model;
                describe: a tensor in numbers;   any model on any batch
growth.py       token_norms, the data of Figure 9, and the law by which outputs grow
weights.py      WeightLog, the data of Figures 9 and 10 and of Appendix B while a model trains; spectra, norms;
                what a NormSelector chooses
"""

from mambanorm.diagnostics.growth import (
    EXPONENTIAL,
    FLAT,
    growth,
    growth_fits,
    growth_table,
    norm_quantiles,
    norms_by_depth,
    token_norms,
)
from mambanorm.diagnostics.recording import blocks_of, left_as_found, record_sites
from mambanorm.diagnostics.weights import (
    BLOCK_PARTS,
    SelectorLog,
    WeightLog,
    marchenko_pastur,
    mixture_moves,
    mixtures_of,
    part_norms,
    selector_weights,
    sigma_history,
    singular_values,
    spectra,
    spectrum_at,
    spectrum_spread,
)

record = record_sites  # the older name; the command `record` is another thing: it records results

__all__ = [
    "BLOCK_PARTS",
    "EXPONENTIAL",
    "FLAT",
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
    "spectrum_spread",
    "token_norms",
]
