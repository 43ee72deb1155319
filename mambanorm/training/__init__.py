"""Training: from the config of one run to a store of many.

grid.py         configs from a task, a scale, arms and seeds;   presets.py: what a task's runs are at each scale;   seeds.py
loop.py         train: one run, from top to bottom
optimizer.py, schedule.py, evaluation.py, checkpoint.py   what the loop is made of
result.py       what a run gives
store.py        the folder of all runs;   stored_run.py: one of them, read and checked;   index.py: what is known of all
sweep.py        many runs;   worker.py, cluster.py, leases.py: where they train, one process each
gpus.py         how many of them fit on a GPU, measured
recorded_results.py   results that the repository carries
machine.py      device, versions, commit, memory
language.py     training of a language model
"""
