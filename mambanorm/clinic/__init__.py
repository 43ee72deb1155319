"""The clinic: what is wrong inside a model, and what to do? For any model, yours too.

diagnosis.py    diagnose: one pass forward and backward, what every site and every weight looks like, and what is wrong
sites.py        which tensor of a model is which site: known families, patterns of module names, any module
passing.py      the pass: described tensors and the first non-finite one;   batches.py: what goes in and comes out
sentences.py    what is found, in words, with what to try and where this kit measured it;   symptoms.py: how it is shown
loops.py        watch: a training loop under observation; trainer_callback: the same for Hugging Face's Trainer
watching.py     what watch does at each step;   reports.py: what it says of one that is not finite
surgery.py      insert_norm: a norm at a site of a trained model, calibrated so that little changes
model_check.py  check_model: the guide's checklist on a real model;   exam.py: a copy of it, provenance.py: its norms
checks_of_structure.py    the checks of what a model is made of;   checks_of_behaviour.py: of what it does
"""

from mambanorm.clinic.diagnosis import Diagnosis, diagnose
from mambanorm.clinic.loops import trainer_callback, watch
from mambanorm.clinic.model_check import CHECKS, check_model
from mambanorm.clinic.reports import NonFinite, Report
from mambanorm.clinic.surgery import Surgery, insert_norm
from mambanorm.clinic.symptoms import Symptom, Symptoms
from mambanorm.clinic.watching import Watched

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
