"""mambanorm: a study kit on normalization in Mamba.

The one way through the house:

    config → task → model → train → run store → frame → figure → notebook → report
"""

from mambanorm.arms import PRESETS, Arm
from mambanorm.block import MambaBlock
from mambanorm.claims import CLAIMS, Verdict, chosen_lr, judge, needed, verdict_table, with_summaries
from mambanorm.config import RunConfig, base_config, grid, study
from mambanorm.diagnostics import record, token_norms
from mambanorm.models import ImageClassifier, SequenceClassifier
from mambanorm.norms import NORMS, NormVary, create_norm, register_norm
from mambanorm.recorded import check_source
from mambanorm.runs import find_run, load_runs, save_run
from mambanorm.ssm import scan_backend, selective_scan
from mambanorm.sweep import sweep
from mambanorm.tasks import TASKS, load_task, register_task
from mambanorm.train import RunResult, train
from mambanorm.vision import VSSBlock, cross_merge, cross_scan

__version__ = "0.1.0"

__all__ = [
    "CLAIMS",
    "NORMS",
    "PRESETS",
    "TASKS",
    "Arm",
    "ImageClassifier",
    "MambaBlock",
    "NormVary",
    "RunConfig",
    "RunResult",
    "SequenceClassifier",
    "VSSBlock",
    "Verdict",
    "base_config",
    "check_source",
    "chosen_lr",
    "create_norm",
    "cross_merge",
    "cross_scan",
    "find_run",
    "grid",
    "judge",
    "load_runs",
    "load_task",
    "needed",
    "record",
    "register_norm",
    "register_task",
    "save_run",
    "scan_backend",
    "selective_scan",
    "study",
    "sweep",
    "token_norms",
    "train",
    "verdict_table",
    "with_summaries",
]
