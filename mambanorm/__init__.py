"""mambanorm: the Mamba block, normalization layers and a training loop, to be read and changed.

    block.py        MambaBlock: the forward pass with its sites for norms
    norms/          BN, IN, LN, RMSN, GN, NormVary, and the registry for norms of yours
    loop.py         the training loop
    models/         SequenceClassifier and LanguageModel
    inside.py       record sites, L2 norms and singular values
    arms.py         the notation N1>SSM>N2
    operations/     scan, convolution and gate, and their readable twins
    kernels/        the fused loops behind the operations (Numba, Triton)

Needs torch and numpy. With numba installed the CPU is fast. The study that was made with these
parts is the package mambanorm_study; tools for a model of yours are in mambanorm_clinic.
"""

from mambanorm.lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(__name__, __file__)
