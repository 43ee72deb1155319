"""The clinic: where does it come from, when a Mamba's loss turns to NaN? For any model, yours too.

diagnosis.py    diagnose: one pass forward and backward, what every site and every weight looks like, and what is wrong
sites.py        which tensor of a model is which site: known families, patterns of module names, any module
passing.py      the pass: hooks in, described tensors and the first non-finite one out
sentences.py    what is found, in words, with what to try and where this kit measured it
reports.py      what watch says of a step that is not finite
replay.py       the batch at which a training failed, once more
watching.py     watch: a training loop under observation
hugging_face.py trainer_callback, the same for Hugging Face's Trainer
surgery.py      insert_norm: a norm at a site of a trained model, calibrated so that little changes
"""

from mambanorm.clinic.diagnosis import Diagnosis, diagnose
from mambanorm.clinic.hugging_face import trainer_callback
from mambanorm.clinic.reports import NonFinite, Report
from mambanorm.clinic.surgery import Surgery, insert_norm
from mambanorm.clinic.watching import Watch, watch

__all__ = [
    "Diagnosis",
    "NonFinite",
    "Report",
    "Surgery",
    "Watch",
    "diagnose",
    "insert_norm",
    "trainer_callback",
    "watch",
]
