"""Trains, evaluates and stores runs. The training loop itself is mambanorm/loop.py.

grid.py              configs from a task, a scale, arms (norms of a block) and seeds
presets.py           the settings of each task at each scale
build.py             builds the model of a config
run.py               trains one run with the loss of regimen.py and the metrics of evaluation.py
training_state.py    the state of a run while it trains, and the checkpoint of this state
weight_log.py        spectra and norms of the weights during a run
result.py            the result of a run, in memory and on disk
store.py             the folder of all runs
sweep.py             trains many runs with Dask
cluster.py           starts Dask workers, or connects to a running Dask scheduler
worker.py            trains and stores one run
needed_runs.py       trains runs that depend on the results of other runs
recorded_results.py  results recorded in the repository, and the learning rates chosen from them
measurements.py      stores measurements of small trainings that have no config
machine.py           device, versions, commit, processor and memory of a run
"""
