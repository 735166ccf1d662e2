"""Optimizers: SGD with momentum, Adagrad, Adam, AdamW. The update runs in the core.

Sparse tables are updated in their touched rows only, state and weight decay included, as in PyTorch's SparseAdam.
"""

from .optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, clip_grad_norm

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "clip_grad_norm"]
