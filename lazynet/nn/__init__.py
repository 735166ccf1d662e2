"""Layers, written only with the public operators. Names, shapes and gate order of parameters are PyTorch's."""

from .layers import Dropout, Embedding, LayerNorm, Linear
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, LSTMState, RNNCell
from .tree import BinaryTreeLSTMCell, ChildSumTreeLSTMCell, TreeLSTM

__all__ = [
    "GRU", "LSTM", "RNN", "BinaryTreeLSTMCell", "ChildSumTreeLSTMCell", "Dropout", "Embedding", "GRUCell", "LSTMCell",
    "LSTMState", "LayerNorm", "Linear", "RNNCell", "TreeLSTM",
]  # fmt: skip
