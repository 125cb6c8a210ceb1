"""Pretraining on synthetic data: priors that generate labelled outlier detection datasets, training and evaluation.

Priors and training need only torch, numpy, scipy and safetensors. The commands (`python -m pretrain --help`) use rich
and matplotlib if they are installed.
"""
