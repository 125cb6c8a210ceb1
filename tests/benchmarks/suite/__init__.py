"""The benchmark suite: speed, latency and memory, ours and of other detectors, measured in the same run.

In reading order:

- `command`: the command line. `scale`: how much is measured. `report`: the document of a run.
- `timing`: CPU time of several variants, in turns. `machine`: the machine, its measured peaks, and the floor of a cost.
- `contenders`: the rows, our models, and the other detectors.
- `scoring`, `build`, `codec`, `streaming`, `confidence`, `explaining`, `drift`, `metrics`, `memory`, `service`: one
  benchmark each. `load`: the input of the service, and how far it has come.
- `exponents`: how costs grow with sizes. `tables`, `plots`: a run, or two of them, as text and as pictures.
"""
