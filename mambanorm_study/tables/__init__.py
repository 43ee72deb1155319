"""The tables of the study: the runs that the paper's questions need, and the answers from them.

experiments.py          lists of runs: arms, depths, failures, learning rates, budgets
notebook_runs.py        each notebook's question, tasks and runs, in one table
paper.py                the numbers that the paper prints, from paper.csv
bibliography.py         every source that the kit names, from references.bib
run_tables.py           a run frame → means, paired differences, ours beside the paper's
intervals.py            intervals for a handful of seeds
contrasts.py            differences of differences, gains of further sites, Table 2 beside ours
procedure.py            the paper's two steps to a pair, and the cost of choosing
instance_norm_parts.py  the parts of IN
scan_by_hand.py         one channel, a few states
diagnostics.py          the inside of models: gate, modes, growth over depth, endings, Figure 10
growth.py               norms over depth, and the law of their growth
summaries.py            numbers on the inside of each run, as columns of the run frame
scores.py               a run frame → the numbers that arms are compared by
robustness.py           trained models on corrupted images, latency, classical models of tables
norm_catalog.py         the registry of norms as tables, the costs of norms, the parameters of arms
plan.py                 the cost of runs before they start
replication.py          the reader's machine trains compared arms once more
"""
