"""Pretraining on synthetic data: priors that generate labelled outlier-detection datasets, and the training loop.

Runs with only torch, numpy, scipy and safetensors installed; matplotlib is used for the loss plot where it is present.
`python -m pretrain --help` lists the commands.
"""
