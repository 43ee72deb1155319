"""Trains, evaluates and stores runs. The training loop itself is mambanorm/loop.py.

grid.py              configs from a task, a scale, arms and seeds; presets.py: each task's settings
build.py             builds the model of a config
run.py               trains one run with the loss of regimen.py and the metrics of evaluation.py
training_state.py    the state of a run while it trains, and the checkpoint of this state
weight_log.py        spectra and norms of the weights during a run
result.py            the result of a run, in memory and on disk
store.py             the folder of all runs
sweep.py             trains many runs in the processes of cluster.py and worker.py
needed_runs.py       trains runs that depend on the results of other runs
recorded_results.py  recorded results in the repository, and the learning rates chosen by them
measurements.py      stores measurements of small trainings that have no config
machine.py           device, versions, commit, processor and memory of a run
"""
