"""LazyNet: lazy, auto-batching neural networks whose shape differs from example to example."""

from . import batching, cuda, data, decode, errors, init, metrics, nn, optim
from ._core import num_threads, set_num_threads, vector_unit
from .anomaly import detect_anomaly
from .cell import Cell, cell, set_cells
from .checks import check_batching, check_gradients
from .device import Device, device, set_default_device
from .graph import Graph
from .init import seed
from .module import Module
from .node import Node
from .nodes.attention import *
from .nodes.convolution import *
from .nodes.crf import *
from .nodes.dropout import *
from .nodes.elementwise import *
from .nodes.embedding import *
from .nodes.linear import *
from .nodes.loss import *
from .nodes.normalization import *
from .nodes.pooling import *
from .nodes.reduce import *
from .nodes.search import *
from .nodes.shape import *
from .nodes.softmax import *
from .parameter import Parameter, SparseRows
from .recur import Structure, recur
from .saving import Checkpoint, load, save

__version__ = "0.1.0"
