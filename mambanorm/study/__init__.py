"""The study: which runs the paper's questions need, and the tables that answer from them.

experiments.py    the lists of runs: arms, depths, failures, and what each notebook needs
paper.py          the numbers that the paper prints, and where it contradicts itself
tables.py         a run frame → means, paired differences, ours beside the paper's
intervals.py      intervals and tests for a handful of seeds
bibliography.py   every source that the kit names, from references.bib
norm_catalog.py   the registry of norms as tables, and what each norm costs
contrasts.py      differences of differences;   sites_table.py: what a norm at one more site brings
procedure.py      the paper's two steps to a pair, and what choosing costs
table_2.py        Table 2 beside our gains, and what the tasks that are not run would cost
gate.py           what a block does with an input that grows;   modes.py: trained models scored in train and eval mode
inside.py         the models of notebook 07: weights turned up, trained weights, growth over depth, how runs ended
replication.py    the reader's own machine trains compared arms once more, and what that says
halves.py         IN taken apart
two_looks.py      why new seeds are judged alone
classical.py      boosted trees and a linear model on a run's own split of a table
plan.py           what a run costs before it starts;   estimate.py: how long the runs take that are not trained yet
"""
