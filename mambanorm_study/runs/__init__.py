"""Runs, from the config of one to a store of many. The training loop is mambanorm/loop.py.

grid.py              configs from a task, a scale, arms and seeds; presets.py: each task's settings
build.py             the model of a config
run.py               train: one run, with the loss of regimen.py and the metrics of evaluation.py
training_state.py    what changes while a run trains, and its checkpoint
weight_log.py        spectra and norms of the weights during a run
result.py            the result of a run, in memory and on disk
store.py             the folder of all runs
sweep.py             many runs; cluster.py and worker.py: the processes that train them
needed_runs.py       runs that depend on the results of other runs
recorded_results.py  results in the repository, and the learning rates that they choose
measurements.py      stored measurements of small trainings without a config
machine.py           device, versions, commit, memory
"""
