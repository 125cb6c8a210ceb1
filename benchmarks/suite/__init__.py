"""The benchmark suite: speed, latency and memory, ours and of other detectors, measured in the same run.

In reading order:

- `command`: the command line, and how much is measured. `report`: the document of a run, as text and as pictures.
- `timing`: CPU time of several variants, in turns. `contenders`: the rows, our models, and the other detectors.
- `speed`, `opinions`, `metrics`, `memory`, `replay`, `service`: the benchmarks. `load`: the input of the service, and
  how far it has come.
"""
