"""Where an mlx-lm model keeps its decoder layers, its embeddings and its head."""

import copy

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs

from ..errors import UserError
from .stock import StockModel
from .swap import subclass

# What mlx-lm's families call the decoder stack, the embedding table in it, and an untied head.
STACKS = ("model", "backbone", "transformer")
EMBEDDINGS = ("embed_tokens", "embeddings", "tok_embeddings", "word_embeddings", "wte")
HEADS = ("lm_head", "output")


class Stack(StockModel):
    """The decoder stack of a model, and the head that follows it.

    Args:
        model: as mlx-lm loads it; the language model of a multimodal one is found by its name.

    Attributes:
        module: the decoder stack.
        layers: the decoder layers, all ``num_layers`` of them.
        embedding: the embedding table, of ``vocab_size`` tokens, padding included.
        hidden_size, dtype: of the hidden states.
        args: the language model's configuration, as mlx-lm has read it, if it keeps that.
        name: the family: the module of mlx_lm.models that the language model comes from.

    Raises:
        UserError: the model is built otherwise, or split over several machines.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        language = model.language_model if "language_model" in model else model
        self.name = type(language).__module__.rpartition(".")[2]
        # Most families call it args, some config.
        self.args = next((x for x in vars(language).values() if isinstance(x, BaseModelArgs)), None)
        self._language = language
        self._key = next((name for name in STACKS if name in language), None)
        layers = language[self._key].get("layers") if self._key else None
        if not isinstance(layers, list):
            raise UserError(
                f"The target's family {self.name!r} does not keep its decoder layers in a list "
                f"called layers, in its {', '.join(STACKS)}; they cannot be tapped."
            )
        self.module = language[self._key]
        self.layers = layers
        self.num_layers = len(self.layers)
        if any(layer is None for layer in self.layers):
            raise UserError(
                f"This {self.name!r} target is split into a pipeline and lacks the layers that "
                "other machines have; load it whole, or split by tensor parallelism."
            )
        name = next((name for name in EMBEDDINGS if name in self.module), None)
        if name is None:
            raise UserError(
                f"The target's family {self.name!r} has no embedding table called "
                f"{', '.join(EMBEDDINGS)}."
            )
        self.embedding = self.module[name]
        self.vocab_size = self.embedding.weight.shape[0]
        # Never computed; a quantized table alone does not tell.
        looked_up = self.embedding(mx.array([0]))
        self.hidden_size, self.dtype = looked_up.shape[-1], looked_up.dtype
        self._ran = subclass(type(self.module), __call__=lambda stack, *_, **__: stack.output)

    def head(self, hidden: mx.array) -> mx.array:
        """Logits of the stack's output ``hidden [B, n, hidden]``, softcapped as the model's are.

        The model's own code makes them, whatever it does after the stack: scales, softcaps, a tied
        table or a gathered one. It runs on a shallow copy, with a stack that has run already.
        """
        stack, rest = copy.copy(self.module), copy.copy(self._language)
        stack.__class__, stack.output = self._ran, hidden
        rest[self._key] = stack
        return rest(mx.zeros(hidden.shape[:2], mx.int32))

    def head_raw(self, hidden: mx.array) -> mx.array:
        """The head's product with ``hidden [B, n, hidden]``, before any scale or softcap."""
        name = next((name for name in HEADS if name in self._language), None)
        if name is None:
            return self.embedding.as_linear(hidden)
        return self._language[name](hidden)
