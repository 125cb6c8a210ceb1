"""Training: from batches of synthetic datasets to a run directory with weights.

In reading order:

- `train`: the loop. `config`: its settings. `presets`: named settings.
- `loader`: the batch of a step, its evidence channels, and the measure that filters datasets.
- `state`: weights, their average, the optimiser. `run_files`: the files of a run.
"""
