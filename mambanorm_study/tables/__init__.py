"""The tables of the study: lists of the runs that answer the paper's questions, and the answers.

An arm names the norms before and after the SSM, e.g. RMSN>SSM>GN. A run frame is a DataFrame with
one row per run.

experiments.py          lists of runs: arms, depths, failures, learning rates, budgets
notebook_runs.py        each notebook's question, tasks and runs, in one table
paper.py                the numbers that the paper prints, from paper.csv
bibliography.py         every source that the kit names, from references.bib
run_tables.py           means and paired differences of a run frame, our means beside the paper's
intervals.py            intervals for a handful of seeds
contrasts.py            differences of differences, gains of norms at sites other than before and
                        after the SSM, our gains beside the paper's Table 2
procedure.py            the paper's two steps to choose a pair of norms, and the cost of choosing
instance_norm_parts.py  the two operations of IN: centring and scaling
scan_by_hand.py         the scan of one channel with a few states
diagnostics.py          measurements inside models: the gate, train and eval mode, growth over
                        depth, how runs end, Figure 10
growth.py               L2 norms of the blocks' outputs over depth, and the law of their growth
summaries.py            measurements inside each run, as columns of the run frame
scores.py               the numbers by which arms are compared, from a run frame
transfer.py             pretraining, and fine-tuning in two phases, beside training from scratch
robustness.py           accuracy on corrupted images, latency, and classical models for tabular data
norm_catalog.py         the registry of norms as tables, the costs of norms, the parameters of arms
plan.py                 the cost of runs before they start
flops.py                FLOPs of a forward pass, norms included
replication.py          training of recorded arms once more, on the reader's machine, with new seeds
"""
