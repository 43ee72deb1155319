"""The experiments of the teaching notebooks. Each experiment takes seconds and returns a DataFrame.

| file | question |
|---|---|
| preprocessing.py | what does the scale of features do to gradient descent? |
| invariance.py | which changes of its input leave a norm's output unchanged? |
| state_space.py | how long does one state of a state space model remember? |
| trained.py | what does batch norm do in a small VGG; gate and convolution in a Mamba block? |
| why_norms.py | does a norm make the loss smooth; can a net do without one? |
| outputs.py | do outputs stay small with a norm before the block, after it, or both? |
| elements.py | are the elements of the outputs more uniform with norms on both sides? |
| gan.py | which norm in a GAN, and what does a discriminator see of its batch? |
| overheads.py | how much time and memory does a norm add to a CNN, an LSTM, a Transformer? |
| explorable.py | a failing run, larger weights and exchanged rows, for the explorers |
"""
