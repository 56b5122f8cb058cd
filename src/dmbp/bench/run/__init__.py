"""Runs a plan: a driver gives units of work to workers and writes their rows to the store.

- `driver`: the run from plan to store, its progress and its summary;
- `unit_runner`: how a worker computes one unit;
- `half_precision`: how it runs the masked images of metrics in 16 bits;
- `pool`: assigns units to workers and replaces workers that die;
- `local`: workers in this process, or in several processes on this machine;
- `worker_process`: how such a process begins;
- `ray_cluster`: workers on a Ray cluster.
"""
