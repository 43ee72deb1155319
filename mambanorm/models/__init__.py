"""The models: the Mamba block with its two norms, and what is made of it.

arms.py         the notation N1>SSM>N2, and the published variants
block.py        MambaBlock: where the norms stand, where the gate is multiplied in, what diagnostics can see
mamba2.py       Mamba2Block, with the same sites;   blocks.py: which block a model is made of
classifier.py   SequenceClassifier: stem → blocks → mean → head
vision.py       VSSBlock and ImageClassifier: four scans over an image
language.py     LanguageModel;   pretrained.py: checkpoints of mamba-ssm and transformers
positional.py   positional encoding, off unless asked for
build.py        build_model: the model of a config
"""
