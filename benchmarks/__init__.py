"""Benchmarks: what a scan, a norm and a training step cost, beside a floor and beside peers.

    cases → peers → timing (and memory, in child processes) → table → results/*.json, *.md, *.png

`mambanorm bench`
    cases.py        what is measured: each section as a visible list
    peers.py        what is built: ours, the peers, the floor; twins.py has plain twins of our code
    timing.py       how it is timed: in turn, within a budget; runs.py times whole runs
    memory.py       peak memory of one case, in a fresh process
    table.py        times → ratios, targets, tables; pictures.py draws them
    run.py          all of it, in order
    gpu.py          `python -m benchmarks.gpu`, with gpu_errors.py, gpu_times.py, gpu_blocks.py,
                    gpu_graph.py and gpu_workers.py

Programs of their own
    store.py            times a store of 50,000 runs
    replay.py           trains recorded rows anew
    controls.py         simulates how often the verdicts are wrong
    notebook_matrix.py  executes every notebook with a task of every kind
    protocol.py         writes the tables of PROTOCOL.md

Glossary: B rows, L positions, D channels (d_model; of the scan: d_inner), N state size.
"""
