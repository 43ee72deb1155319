"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.advice import (
    compare as compare,
    recommend as recommend,
)
from mambanorm_study.basics.settings import check_source as check_source
from mambanorm_study.claims import (
    CLAIMS as CLAIMS,
    Verdict as Verdict,
    judge as judge,
    needed as needed,
    verdicts as verdicts,
)
from mambanorm_study.config import RunConfig as RunConfig
from mambanorm_study.models.mamba2 import Mamba2Block as Mamba2Block
from mambanorm_study.models.transformer import TransformerClassifier as TransformerClassifier
from mambanorm_study.models.vision import (
    ImageClassifier as ImageClassifier,
    VSSBlock as VSSBlock,
    cross_merge as cross_merge,
    cross_scan as cross_scan,
)
from mambanorm_study.runs.grid import (
    base_config as base_config,
    grid as grid,
)
from mambanorm_study.runs.presets import PAPER_SEED as PAPER_SEED
from mambanorm_study.runs.result import RunResult as RunResult
from mambanorm_study.runs.run import train as train
from mambanorm_study.runs.store import (
    find_run as find_run,
    load_runs as load_runs,
    save_run as save_run,
)
from mambanorm_study.runs.sweep import sweep as sweep
from mambanorm_study.tables.bibliography import references as references
from mambanorm_study.tables.notebook_runs import notebook_runs as notebook_runs
from mambanorm_study.tables.plan import (
    plan as plan,
    plan_table as plan_table,
)
from mambanorm_study.tables.replication import replicate as replicate
from mambanorm_study.tables.summaries import with_summaries as with_summaries
from mambanorm_study.tasks import (
    TASKS as TASKS,
    load_task as load_task,
    register_task as register_task,
)
