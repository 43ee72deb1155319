"""Peers side by side: what a scan, a norm and a whole training step cost here, beside a floor and
beside others.

    cases → peers → timing (and memory, in child processes) → table → results/*.json, *.md, *.png

Map
    cases.py    what is measured: each section as a visible list
    peers.py    what is built: ours, the peers, the floor, the naive twin of NormVary
    timing.py   how it is timed: in turn, within a budget
    memory.py   how it is weighed: one step in a fresh process
    table.py    times → ratios, targets, tables
    run.py      `mambanorm bench`: all of it, in order
    store.py    apart from these: what a store of 50,000 runs costs

Glossary: B rows, L positions, D channels (d_model; of the scan: d_inner), N state size.
"""
