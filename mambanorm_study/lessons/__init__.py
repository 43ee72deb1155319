"""The experiments of the teaching notebooks. Each takes seconds and returns a data frame.

| file | question |
|---|---|
| preprocessing.py | what does the scale of features do to gradient descent? |
| invariance.py | which changes of its input leave a norm's output unchanged? |
| state_space.py | how long does one state of a state space model remember? |
| trained.py | a small VGG with and without batch norm; a Mamba block without gate or convolution |
"""
