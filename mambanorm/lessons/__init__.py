"""The experiments of the notebooks that teach: small, seconds long, and each returns a data frame.

    preprocessing.py   what the scale of features does to gradient descent
    invariance.py      which changes of its input each norm does not feel
    fitting.py         a training loop of fifteen lines for the two that follow
    batch_norm.py      a small VGG with and without batch norm (the lecture's claim)
    block_parts.py     a Mamba block without its gate or without its convolution

What the last two measured is kept in the run store, in a folder that its runs do not see (training/kept.py).
"""
