"""mambanorm_clinic: find and treat faults of your own model; describe your own norm.

diagnosis.py           diagnose: find the faults of a model in one forward and backward pass
watching.py            watch, trainer_callback: stop a training before a non-finite step
surgery.py             insert_norm: insert a norm at a site of a trained model
model_check.py         check_model: find mistakes in the use of norms
checkpoints.py         load_model: the model of a checkpoint; read_checkpoint: the tensors
mamba_checkpoints.py   load_mamba_checkpoint: the model of a mamba-ssm or transformers checkpoint
statistics.py          update_statistics: recompute running statistics
card.py                norm_card: describe a norm on one page (with card_checks.py, card_tables.py,
                       card_text.py and card_page.py)
commands.py            the commands `mambanorm card` and `mambanorm diagnose`

sites.py               find and record the sites (named tensors) of a model
mixers.py              find the sites in Mamba mixers of other libraries
rules.py               find faults in the record of a pass
symptoms.py            the classes that describe faults
figures.py             draw figures
calling.py             call a model of any library
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
