"""How good models are: on labelled tables, on synthetic stress tests, and against variants of themselves.

In reading order:

- `tables`: labelled tables and their splits. `stress`: the synthetic stress table.
- `detectors`: models and baselines. `runs`: runs them on tasks. `ranking_metrics`: AUROC, AUPR and F1.
- `comparison`: ranks and tests. `published`: results of others. `report`: as Markdown and HTML. `plots`: all plots.
- `studies`, `ablate`: variants of a model, trained and compared.
"""
