"""Runs: from the config of one to a store of many. The loop itself is mambanorm/loop.py.

grid.py         configs from a task, a scale, arms and seeds;   presets.py: a task's runs at each
scale run.py          train: one run. To the loop it hands a loss (regimen.py) and observers
(observers.py, evaluation.py) result.py       what a run gives, and how it lies on disk, read and
checked store.py        the folder of all runs;   index.py: what is known of all sweep.py
many runs;   worker.py, cluster.py: where they train, one process each recorded_results.py   results
that the repository carries;   kept.py: what small trainings measured that are no runs machine.py
device, versions, commit, memory
"""
