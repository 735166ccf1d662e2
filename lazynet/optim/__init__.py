"""Optimizers: SGD with momentum, Adagrad, Adam, AdamW; learning-rate schedules and early stopping.

The update runs in the core. Sparse tables are updated in their touched rows only, state and weight decay included, as in
PyTorch's SparseAdam.
"""

from .early_stopping import EarlyStopping
from .optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, clip_grad_norm
from .schedules import CosineLR, InverseSquareRootLR, ReduceLROnPlateau, Schedule, StepLR, WarmupLR

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineLR",
    "EarlyStopping",
    "InverseSquareRootLR",
    "Optimizer",
    "ReduceLROnPlateau",
    "Schedule",
    "StepLR",
    "WarmupLR",
    "clip_grad_norm",
]
