"""mambanorm: a study kit on normalization in Mamba.

A run passes through these stages, in this order:

    config → task → model → train → run store → frame → figure → notebook → report

The thin part, to be read and changed: arms.py, block.py, norms, operations, models, loop.py, config.py. The rest
carries it; CONTRIBUTING.md has the map.

Codes in brackets: I1…I14 are the paper's inconsistencies, listed in docs/paper.md; H1…H16 are its claims, in
claims/hypotheses.py and said_in_passing.py.

`import mambanorm` itself imports nothing. A public name is looked up in PLACES when it is first used, and its module is
imported then (PEP 562). So the command line does not wait for what it does not need.
"""

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

PLACES = {
    name: module
    for module, names in {
        "advice": "compare norm_card recommend",
        "claims": "CLAIMS Verdict judge needed verdicts",
        "look": "record record_sites token_norms NonFinite check_model diagnose insert_norm trainer_callback watch",
        "arms": "Arm PRESETS SITES",
        "block": "MambaBlock",
        "models.classifier": "SequenceClassifier",
        "models.language": "LanguageModel",
        "models.mamba2": "Mamba2Block",
        "models.pretrained": "load_mamba_checkpoint load_model read_checkpoint",
        "models.transformer": "TransformerClassifier",
        "models.vision": "ImageClassifier VSSBlock",
        "norms": "NORMS NormVary create_norm register_norm",
        "norms.outside": "AdaLN standardize_weights",
        "norms.statistics": "update_statistics",
        "operations": "conv_silu cross_merge cross_scan gated low_rank_scan scan_backend selective_scan",
        "study.bibliography": "references",
        "study.experiments": "study",
        "study.plan": "plan plan_table",
        "study.replication": "replicate",
        "study.summaries": "with_summaries",
        "tasks": "TASKS load_task register_task",
        "config": "RunConfig",
        "runs.grid": "base_config grid",
        "runs.run": "train",
        "runs.presets": "PAPER_SEED",
        "basics.settings": "check_source",
        "runs.result": "RunResult",
        "runs.store": "find_run load_runs save_run",
        "runs.sweep": "sweep",
    }.items()
    for name in names.split()
}
"""Public name → the module that defines it."""

__all__ = sorted(PLACES)


def __getattr__(name: str):
    if name in PLACES:
        globals()[name] = getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
        return globals()[name]
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    from pkgutil import iter_modules

    return sorted({*globals(), *PLACES, *(module.name for module in iter_modules(__path__))})


class _Package(ModuleType):
    """Keeps `mambanorm.study` a function: importing the folder `mambanorm/study` would replace it by the module."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
