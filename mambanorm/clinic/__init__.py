"""The clinic: what is wrong inside a model, and what to do? For any model, yours too.

diagnosis.py    diagnose: one pass forward and backward, what every site and every weight looks like, and what is wrong
sites.py        which tensor of a model is which site: known families, patterns of module names, any module; and the
                pass that looks at them
findings.py     what is found, in words, with what to try and where this kit measured it; how it is shown
watching.py     watch: a training loop under observation; trainer_callback: the same for Hugging Face's Trainer
surgery.py      insert_norm: a norm at a site of a trained model, calibrated so that little changes
model_check.py  check_model: the guide's checklist on a real model, and its checks of what a model is made of
checks_of_behaviour.py    its checks of what a model does;   exam.py: the copy that they look at, and its norms
"""

from mambanorm.clinic.diagnosis import Diagnosis, NonFinite, Report, diagnose
from mambanorm.clinic.findings import Symptom, Symptoms
from mambanorm.clinic.model_check import CHECKS, check_model
from mambanorm.clinic.surgery import Surgery, insert_norm
from mambanorm.clinic.watching import Watched, trainer_callback, watch

__all__ = [
    "CHECKS",
    "Diagnosis",
    "NonFinite",
    "Report",
    "Surgery",
    "Symptom",
    "Symptoms",
    "Watched",
    "check_model",
    "diagnose",
    "insert_norm",
    "trainer_callback",
    "watch",
]
