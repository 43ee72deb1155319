"""The models, and the blocks beside MambaBlock (mambanorm/block.py).

mamba2.py       Mamba2Block
classifier.py   SequenceClassifier: stem → blocks → mean → head
vision.py       VSSBlock, four scans over an image, and ImageClassifier
language.py     LanguageModel;   pretrained.py: checkpoints of mamba-ssm and transformers
transformer.py  S2's Transformer, with any norm
parts.py        which block, the ends around the blocks, positional encoding, stochastic depth
build.py        build_model: the model of a config
"""
