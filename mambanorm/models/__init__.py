"""Models of Mamba blocks.

classifier.py   SequenceClassifier
language.py     LanguageModel
parts.py        parts that models share: blocks, stem, head, positional encoding, stochastic depth
padding.py      moves padding to the end of rows, as given by an attention mask
"""
