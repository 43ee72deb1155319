"""Models of Mamba blocks.

classifier.py   SequenceClassifier
language.py     LanguageModel
parts.py        blocks, stem, head, positional encoding, stochastic depth
padding.py      from an attention mask to rows whose padding is at their end
"""
