"""Training: from the config of one run to a store of many. The loop itself is mambanorm/loop.py.

grid.py         configs from a task, a scale, arms and seeds;   presets.py: a task's runs at each scale;   seeds.py
run.py          train: one run. To the loop it hands a loss (regimen.py) and observers (observers.py, checkpoint.py,
                evaluation.py)
result.py       what a run gives
store.py        the folder of all runs;   stored_run.py: one of them, read and checked;   index.py: what is known of all
sweep.py        many runs;   worker.py, cluster.py, leases.py: where they train, one process each
gpus.py         how many of them fit on a GPU, measured
recorded_results.py   results that the repository carries;   kept.py: what small trainings measured that are no runs
machine.py      device, versions, commit, memory
language.py     training of a language model
"""
