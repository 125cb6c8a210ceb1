"""Training: from batches of synthetic datasets to a run directory with weights.

In reading order:

- `train`: the loop. `config`: its settings. `presets`: named settings.
- `loader`: the batch of a step, filtered. `evidence_batches`: its evidence channels. `auroc`: the filter's measure.
- `state`: weights, their average, the optimiser. `run_files`: the files of a run.
- `mean_attention`: a trained model with a mean in the place of its softmax attention.
"""
