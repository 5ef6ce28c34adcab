"""Recurrent networks for text, written from their gates so that they can be vmapped over clients."""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from motley.core.acceleration import kernel_for
from motley.core.vmapped import plain
from motley.nets.models import Split, model, tokens


class LSTMLayer(nn.Module):
    """One LSTM layer over a sequence: [B, T, I] -> [B, T, H].

    i, f, g, o = split(W_x x_t + W_h h_{t-1} + b);  c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g);
    h_t = sigmoid(o) tanh(c_t). The gates lie in the order of `nn.LSTM`, with one bias where that has the sum of two.
    The input's share of the gates is one matrix product for all times.
    """

    def __init__(self, n_inputs: int, n_hidden: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(n_hidden)
        self.n_inputs, self.n_hidden = n_inputs, n_hidden
        self.weight_input = nn.Parameter(torch.empty(4 * n_hidden, n_inputs).uniform_(-bound, bound))
        self.weight_hidden = nn.Parameter(torch.empty(4 * n_hidden, n_hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * n_hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if plain(x) and plain(self.weight_hidden) and not torch.is_grad_enabled():
            return self._by_torch(x)
        from_input = F.linear(x, self.weight_input, self.bias)
        run = kernel_for("lstm", from_input, self.weight_hidden)
        if run is not None:
            found: Tensor = run(from_input, self.weight_hidden)
            return found
        hidden = cell = x.new_zeros(x.shape[0], self.n_hidden)
        states = []
        for gates in from_input.unbind(1):
            gate_i, gate_f, gate_g, gate_o = (gates + F.linear(hidden, self.weight_hidden)).chunk(4, -1)
            cell = gate_f.sigmoid() * cell + gate_i.sigmoid() * gate_g.tanh()
            hidden = gate_o.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, 1)

    def _by_torch(self, x: Tensor) -> Tensor:
        """The same by torch's own layer, for predictions: quick, but not for many clients at once."""
        start = x.new_zeros(1, x.shape[0], self.n_hidden)
        weights = (self.weight_input, self.weight_hidden, self.bias, torch.zeros_like(self.bias))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            states: Tensor = torch.lstm(x, (start, start), weights, True, 1, 0.0, False, False, True)[0]
        return states


class RecurrentNet(Split):
    """Layers ``embedding, lstm1, lstm2, ..., fc1 (where n_linear > 0), head``.

    The text's last state goes on: that of the last position, or with ``padded`` that of the last token that is not 0.
    """

    def __init__(
        self, vocabulary: int, classes: int, embedding: int, hidden: int, layers: int, n_linear: int, padded: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = layers
        self.padded = padded
        for i in range(1, layers + 1):
            self.add_module(f"lstm{i}", LSTMLayer(embedding if i == 1 else hidden, hidden))
        self.fc1 = nn.Linear(hidden, n_linear) if n_linear else None
        self.head = nn.Linear(n_linear or hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for i in range(1, self.layers + 1):
            h = self.get_submodule(f"lstm{i}")(h)
        last: Tensor = self._last_word(x, h) if self.padded else h[:, -1]
        return self.fc1(last).relu() if self.fc1 is not None else last

    @staticmethod
    def _last_word(x: Tensor, h: Tensor) -> Tensor:
        place = (torch.arange(x.shape[1], device=x.device) * (x != 0)).amax(1)
        return h.gather(1, place[:, None, None].expand(-1, 1, h.shape[2])).squeeze(1)


@model
def char_lstm(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> RecurrentNet:
    """Next character (RADFed, FreezeFL; LEAF's Shakespeare): embedding of 8, two LSTM layers of 256."""
    tokens("char_lstm", shape, vocabulary)
    return RecurrentNet(vocabulary, classes, embedding, hidden, layers, 0, padded=False)


@model
def text_lstm(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, embedding: int = 50, hidden: int = 100, layers: int = 2
) -> RecurrentNet:
    """Class of a short text (FedSAE's Sent140): two LSTM layers of 100, a linear layer of 30, as LEAF's.

    The embedding is learned where LEAF takes GloVe vectors. Token 0 is padding, on either side.
    """
    tokens("text_lstm", shape, vocabulary)
    return RecurrentNet(vocabulary, classes, embedding, hidden, layers, 30, padded=True)
