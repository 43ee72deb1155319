"""mambanorm: the Mamba block, normalization layers and a training loop, to be read and changed.

    block.py        MambaBlock: the forward pass, with sites at which a norm can be placed
    norms/          BN, IN, LN, RMSN, GN, NormVary, and the registry, which takes norms of yours
    loop.py         the training loop
    models/         SequenceClassifier and LanguageModel
    inside.py       record the values at the sites, L2 norms and singular values
    arms.py         the notation N1>SSM>N2
    operations/     scan, convolution and gate, each also in readable plain torch
    kernels/        the fused loops that the operations call (Numba, Triton)

Needs torch and numpy; numba makes the CPU fast. The study built with these parts is the package
mambanorm_study; tools for models of yours are in mambanorm_clinic.
"""

import os

from mambanorm.lazy import attach

__version__ = "0.1.0"

# Threads that wait for each other in a loop (libgomp's default) make a step 2 to 3.5 times as slow
# when another program uses a core; after 1,000 rounds they sleep. Torch, imported later, reads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__getattr__, __dir__, __all__ = attach(__name__, __file__)
