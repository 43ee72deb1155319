"""What every process of the chaos test has done before it begins: a server imports this once, and
the others are forked from it. Without it each of them takes six seconds of computing to start.
"""

import gc

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker  # noqa: F401

import mambanorm_study as study
import mambanorm_study.cli.main

study.train(
    study.base_config("digits", "smoke", steps=2)
)  # loads the kernels; on one thread, so that it can be forked
gc.freeze()  # as a sweep's workers do: each training calls the collector
