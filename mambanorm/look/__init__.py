"""Looking inside a model, yours too: hooks in, data out; what is wrong, and what to do.

recording.py    inspected: the one inspector by hooks;   record_sites: every site of every block of a running model
depth.py        token_norms, the data of Figure 9, and the law by which outputs grow
weights.py      WeightLog, the data of Figures 9 and 10 and of Appendix B while a model trains; spectra, norms;
                what a NormSelector chooses
diagnosis.py    diagnose: one pass forward and backward, what every site and every weight looks like, and what is wrong
sites.py        which tensor of a model is which site: known families, patterns of module names, any module; and the
                pass that looks at them
mixers.py       Mamba mixers of other houses; what a mixer's parameters and the optimizer's groups say
findings.py     what is found, in words, with what to try and where this kit measured it; how it is shown
watching.py     watch: a training loop under observation; trainer_callback: the same for Hugging Face's Trainer
surgery.py      insert_norm: a norm at a site of a trained model, calibrated so that little changes
model_check.py  check_model: diagnose, and the guide's checklist of what may be wrong with the norms
"""

from mambanorm.basics.settings import names_of

PLACES, __getattr__, __dir__ = names_of(
    __name__,
    {
        "recording": "blocks_of left_as_found record record_sites",
        "depth": "EXPONENTIAL FLAT growth growth_fits growth_table norm_quantiles norms_by_depth token_norms",
        "weights": "BLOCK_PARTS WeightLog marchenko_pastur mixture_moves mixtures_of part_norms "
        "selector_weights sigma_history singular_values spectra spectrum_at spectrum_spread",
        "diagnosis": "Diagnosis NonFinite Report diagnose",
        "findings": "Symptom Symptoms",
        "model_check": "check_model",
        "surgery": "Surgery insert_norm",
        "watching": "Watched trainer_callback watch",
    },
)
"""What this room offers → the file that has it."""

__all__ = sorted(PLACES)
