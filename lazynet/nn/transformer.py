"""The Transformer (Vaswani et al. 2017), every sentence a ``(T, d_model)`` node: no padding and no padding masks.

Parameters are those of PyTorch's modules of the same names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import errors, init
from ..module import Module
from ..node import Node
from ..nodes.attention import Window
from ..nodes.elementwise import gelu, relu
from .attention import KeysValues, MultiheadAttention
from .layers import Dropout, LayerNorm, Linear

__all__ = [
    "DecoderState", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer",
]  # fmt: skip

Activation = str | Callable[[Node], Node]


def _activation(activation: Activation) -> Callable[[Node], Node]:
    if callable(activation):
        return activation
    try:
        return {"relu": relu, "gelu": gelu}[activation]
    except KeyError:
        raise errors.NodeValueError(
            f"Transformer: activation {activation!r} is given; 'relu', 'gelu' or a function is required"
        ) from None


class _Layer(Module):
    """What encoder and decoder layers share: self-attention, two linears, and norms around or before each part."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        rotary_base: float | None = None,
        dtype: Any = "float32",
    ) -> None:
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, rotary_base=rotary_base, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias, dtype=dtype)
        self.dropout, self.norm_first, self.activation = Dropout(dropout), norm_first, _activation(activation)

    def _add(self, x: Node, norm: LayerNorm, part: Callable[[Node], Node]) -> Node:
        """x + part(x) with dropout, normalised before the part or after the sum."""
        if self.norm_first:
            return x + self.dropout(part(norm(x)))
        return norm(x + self.dropout(part(x)))

    def _attend_on(self, x: Node, before: KeysValues | None) -> tuple[Node, KeysValues]:
        """Self-attention of rows that continue a sequence, and keys and values of all rows so far."""
        kept: list[KeysValues] = []

        def attend(x: Node) -> Node:
            attended, now = self.self_attn.extend(x, before)
            kept.append(now)
            return attended

        return self._add(x, self.norm1, attend), kept[0]

    def _feed_forward(self, x: Node) -> Node:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network.

    Args:
        d_model: Columns.
        nhead: Heads.
        dim_feedforward: Columns inside the feed-forward network.
        dropout: Rate, also on the attention's probabilities.
        activation: ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: See :class:`LayerNorm`.
        norm_first: Whether norms come before each part and not after each sum.
        bias: Whether linears and norms add biases.
        rotary_base: See :class:`MultiheadAttention`.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> layer, graph = ln.nn.TransformerEncoderLayer(4, 2, 8), ln.Graph()
        >>> layer(graph.input([[1.0, 2.0, 3.0, 4.0]] * 5)).shape
        (5, 4)
    """

    def forward(self, src: Node, src_mask: Node | None = None, is_causal: bool = False, window: Window = None) -> Node:
        """``(T, d_model)`` in, the same out; masks as in :meth:`MultiheadAttention.forward`."""
        x = self._add(src, self.norm1, lambda x: self.self_attn(x, None, None, src_mask, is_causal, window))
        return self._add(x, self.norm2, self._feed_forward)

    def extend(self, x: Node, before: KeysValues | None) -> tuple[Node, KeysValues]:
        """The causal result of rows that continue a sequence, and keys and values of all rows so far."""
        x, now = self._attend_on(x, before)
        return self._add(x, self.norm2, self._feed_forward), now


class TransformerDecoderLayer(_Layer):
    """Causal self-attention, attention to the encoder's result, and a feed-forward network.

    Args:
        d_model: Columns.
        nhead: Heads.
        dim_feedforward: Columns inside the feed-forward network.
        dropout: Rate, also on the attentions' probabilities.
        activation: ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: See :class:`LayerNorm`.
        norm_first: Whether norms come before each part and not after each sum.
        bias: Whether linears and norms add biases.
        rotary_base: Of the self-attention, see :class:`MultiheadAttention`.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        rotary_base: float | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias,
            rotary_base=rotary_base, dtype=dtype,
        )  # fmt: skip
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, dtype=dtype)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias, dtype=dtype)

    def forward(self, tgt: Node, memory: Node, tgt_mask: Node | None = None, tgt_is_causal: bool = True) -> Node:
        """``(T, d_model)`` in, the same out.

        Args:
            tgt: The rows so far.
            memory: The encoder's result, ``(S, d_model)``.
            tgt_mask: Added to the scores of self-attention.
            tgt_is_causal: Whether a row sees those up to itself only.
        """
        x = self._add(tgt, self.norm1, lambda x: self.self_attn(x, None, None, tgt_mask, tgt_is_causal))
        x = self._add(x, self.norm2, lambda x: self.multihead_attn(x, memory, memory))
        return self._add(x, self.norm3, self._feed_forward)

    def extend(self, x: Node, memory: KeysValues, before: KeysValues | None) -> tuple[Node, KeysValues]:
        """The result of rows that continue a sequence, and keys and values of all rows so far."""
        x, now = self._attend_on(x, before)
        x = self._add(x, self.norm2, lambda x: self.multihead_attn.attend(x, memory))
        return self._add(x, self.norm3, self._feed_forward), now


def _copies(layer: Module, count: int) -> list[Any]:
    """Layers of the same form, their matrices drawn anew."""
    layers = [layer]
    for _ in range(count - 1):
        layers.append(copy.deepcopy(layer))
        _draw_matrices(layers[-1])
    for parameter in (parameter for each in layers for parameter in each.parameters()):
        parameter.name = ""  # it is the whole model that names them
    return layers


def _draw_matrices(module: Module) -> None:
    fill = init.xavier_uniform()
    for parameter in module.parameters():
        if len(parameter.shape) > 1:
            parameter.value = fill(parameter.shape, init.generator())


class TransformerEncoder(Module):
    """Layers one after another.

    Args:
        encoder_layer: The first; the others are copies of it, their matrices drawn anew.
        num_layers: At least 1.
        norm: Of the last layer's result; needed where layers have ``norm_first``.
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers: list[TransformerEncoderLayer] = _copies(encoder_layer, num_layers)
        self.norm = norm

    def forward(self, src: Node, mask: Node | None = None, is_causal: bool = False, window: Window = None) -> Node:
        """``(T, d_model)`` in, the same out."""
        for layer in self.layers:
            src = layer(src, mask, is_causal, window)
        return src if self.norm is None else self.norm(src)

    def extend(self, x: Node, state: tuple[KeysValues, ...] | None = None) -> tuple[Node, tuple[KeysValues, ...]]:
        """Of a causal model: the result of rows that follow those before, and the state after them.

        Args:
            x: ``(n, d_model)``.
            state: What the call before gave; None at the start.
        """
        kept = []
        for number, layer in enumerate(self.layers):
            x, now = layer.extend(x, None if state is None else state[number])
            kept.append(now)
        return x if self.norm is None else self.norm(x), tuple(kept)


class DecoderState(NamedTuple):
    """What a decoder keeps between its steps, layer by layer: projections of memory, and of its own rows so far."""

    memory: tuple[KeysValues, ...]
    before: tuple[KeysValues, ...] | None


class TransformerDecoder(Module):
    """Layers one after another; see :class:`TransformerEncoder`.

    Example:
        >>> import lazynet as ln
        >>> layer = ln.nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0)
        >>> decoder, graph = ln.nn.TransformerDecoder(layer, 2), ln.Graph()
        >>> memory, x = graph.input([[1.0, 2.0, 3.0, 4.0]] * 5), graph.input([[0.0, 1.0, 0.0, 1.0]] * 3)
        >>> state = decoder.start(memory)
        >>> for row in x:
        ...     last, state = decoder.extend(row, state)
        >>> bool(abs(last.value - decoder(x, memory).value[2]).max() < 1e-5)
        True
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers: list[TransformerDecoderLayer] = _copies(decoder_layer, num_layers)
        self.norm = norm

    def forward(self, tgt: Node, memory: Node, tgt_mask: Node | None = None, tgt_is_causal: bool = True) -> Node:
        """``(T, d_model)`` in, the same out."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, tgt_is_causal)
        return tgt if self.norm is None else self.norm(tgt)

    def start(self, memory: Node) -> DecoderState:
        """The state before the first row."""
        return DecoderState(tuple([layer.multihead_attn.keys_values(memory) for layer in self.layers]), None)

    def extend(self, x: Node, state: DecoderState) -> tuple[Node, DecoderState]:
        """The result of one or more rows that follow those before, and the state after them."""
        kept = []
        for number, layer in enumerate(self.layers):
            before = None if state.before is None else state.before[number]
            x, now = layer.extend(x, state.memory[number], before)
            kept.append(now)
        return x if self.norm is None else self.norm(x), DecoderState(state.memory, tuple(kept))


class Transformer(Module):
    """Encoder and decoder.

    Args:
        d_model: Columns.
        nhead: Heads.
        num_encoder_layers: Layers of the encoder.
        num_decoder_layers: Layers of the decoder.
        dim_feedforward: Columns inside the feed-forward networks.
        dropout: Rate.
        activation: ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: See :class:`LayerNorm`.
        norm_first: Whether norms come before each part and not after each sum.
        bias: Whether linears and norms add biases.
        dtype: Of the parameters.

    Example:
        >>> import lazynet as ln
        >>> model, graph = ln.nn.Transformer(4, 2, 1, 1, 8), ln.Graph()
        >>> model(graph.input([[1.0, 2.0, 3.0, 4.0]] * 5), graph.input([[1.0, 2.0, 3.0, 4.0]] * 3)).shape
        (3, 4)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        options: Sequence[Any] = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias,
        )  # fmt: skip
        self.encoder = TransformerEncoder(
            TransformerEncoderLayer(*options, dtype=dtype),
            num_encoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias, dtype=dtype),
        )
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(*options, dtype=dtype),
            num_decoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias, dtype=dtype),
        )
        _draw_matrices(self)

    def forward(self, src: Node, tgt: Node) -> Node:
        """The decoder's result for ``tgt``, ``(T, d_model)``, given ``src``, ``(S, d_model)``."""
        return self.decoder(tgt, self.encoder(src))
