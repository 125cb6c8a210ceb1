"""Training: from batches of synthetic datasets to a run directory with weights.

In reading order:

- `train`: the loop. `config`: its settings. `presets`: named settings.
- `loader`: the batch of a step, filtered. `evidence_batches`: its evidence channels, and the
  filter's measure.
- `state`: weights, their average, the optimiser. `run_files`: the files of a run.
"""
