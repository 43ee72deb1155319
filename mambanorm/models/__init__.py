"""The models, and the blocks beside MambaBlock (mambanorm/block.py).

mamba2.py       Mamba2Block;   vision.py: VSSBlock, four scans over an image
classifier.py   SequenceClassifier: stem → blocks → mean → head;   image.py: the same of images
language.py     LanguageModel;   pretrained.py, families.py: checkpoints of mamba-ssm and transformers
transformer.py  S2's Transformer, with any norm
parts.py        which block, positional encoding, stochastic depth
build.py        build_model: the model of a config
"""
