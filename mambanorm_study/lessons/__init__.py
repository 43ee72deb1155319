"""The experiments of the notebooks that teach: small, seconds long, and each returns a data frame.

preprocessing.py   what the scale of features does to gradient descent invariance.py      which
changes of its input each norm does not feel state_space.py     one state of a state space model,
and how long it remembers trained.py         a small VGG with and without batch norm; a Mamba block
without its gate or its convolution
"""
