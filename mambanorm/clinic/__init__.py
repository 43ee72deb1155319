"""The clinic: where does it come from, when a Mamba's loss turns to NaN? For any model, yours too.

diagnosis.py    diagnose: one pass forward and backward, what every site and every weight looks like, and what is wrong
sites.py        which tensor of a model is which site: known families, patterns of module names, any module
passing.py      the pass: hooks in, described tensors and the first non-finite one out
sentences.py    what is found, in words, with what to try and where this kit measured it
"""

from mambanorm.clinic.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
