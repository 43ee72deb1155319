"""The study: which runs the paper's questions need, and the tables that answer from them.

experiments.py    the lists of runs: arms, depths, failures, and what each notebook needs paper.py
the numbers that the paper prints bibliography.py   every source that the kit names, from
references.bib tables.py         a run frame → means, paired differences, ours beside the paper's
intervals.py      intervals and tests for a handful of seeds, and why new seeds are judged alone
contrasts.py      differences of differences, what a norm at one more site brings, Table 2 beside
our gains procedure.py      the paper's two steps to a pair, and what choosing costs halves.py
IN taken apart inside.py         inside a block and inside trained models: gate, modes, growth over
depth, how runs ended summaries.py      a few numbers on the inside of each run, as columns of the
frame on which the claims are judged robustness.py     trained models on corrupted rows, their
latency, classical rivals on a run's own split of a table norm_catalog.py   the registry of norms as
tables, and what norms and arms cost plan.py           what a run costs before it starts;
estimate.py: how long the runs take that are not trained yet replication.py    the reader's own
machine trains compared arms once more, and what that says
"""
