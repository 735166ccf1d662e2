"""Layers, written only with the public operators. Names, shapes and gate order of parameters are PyTorch's."""

from .attention import AdditiveAttention, BilinearAttention, DotAttention, KeysValues, MultiheadAttention
from .composition import HierarchicalEncoder, StackLSTM, StackState
from .convolution import Conv1d, ConvolutionalEncoder
from .crf import CRF
from .layers import Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .positions import LearnedPositions, SinusoidalPositions
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, LSTMState, RNNCell
from .transformer import (
    DecoderState,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from .tree import BinaryTreeLSTMCell, ChildSumTreeLSTMCell, TreeLSTM

__all__ = [
    "CRF", "GRU", "LSTM", "RNN", "AdditiveAttention", "BilinearAttention", "BinaryTreeLSTMCell",
    "ChildSumTreeLSTMCell", "Conv1d", "ConvolutionalEncoder", "DecoderState", "DotAttention", "Dropout", "Embedding",
    "GRUCell", "HierarchicalEncoder", "KeysValues", "LSTMCell", "LSTMState", "LayerNorm", "LearnedPositions", "Linear",
    "MultiheadAttention", "RMSNorm", "RNNCell", "SinusoidalPositions", "StackLSTM", "StackState", "Transformer",
    "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer", "TreeLSTM",
]  # fmt: skip
