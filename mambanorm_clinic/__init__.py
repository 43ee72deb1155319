"""mambanorm_clinic: for a model or a norm of yours.

diagnosis.py     diagnose: one forward and backward pass, its faults, and what to try
watching.py      watch, trainer_callback: the same while a model trains
surgery.py       insert_norm: a norm at a site of a trained model
model_check.py   check_model: a checklist of mistakes with norms
checkpoints.py   load_model, read_checkpoint;   mamba_checkpoints.py: load_mamba_checkpoint
card.py          norm_card: a norm on one page (card_checks.py, card_tables.py, card_text.py,
                 card_page.py)
commands.py      `mambanorm card` and `mambanorm diagnose`

sites.py         which tensor of a model is which site;   mixers.py: Mambas of other libraries
symptoms.py      the data of a fault;   rules.py: how faults are found;   figures.py: pictures
calling.py       runs a model that the clinic does not know
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
