"""The configuration of a new drafter, from its target."""

import dataclasses
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafter.config import SLIDING, DrafterConfig
from ..drafter.model import Drafter
from ..drafter.rope_config import RopeConfig
from ..errors import UserError
from ..generation.chat import chat_tokens
from ..target.target import Target
from .recipe import BLOCK_SIZE, Recipe

LAYERS, TAPS = 5, 5
# Those of the published DFlash 2 checkpoints, whose blocks are plain rows of the table.
DFLASH2 = {
    "embed_scale": "raw",
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
}


def design(
    target: Target, tokenizer: TokenizerWrapper, context_length: int | None, recipe: Recipe
) -> DrafterConfig:
    """The configuration of a new drafter for a target.

    Heads, widths and the base of the rotary embedding are the target's; its scaling is not taken
    over. The head and the embedding table are shared, so they are no part of the drafter. By
    default it has 5 layers as in the paper, fewer for a target of fewer than 25, and reads 5 taps
    by the published spacing.

    Raises:
        UserError: a value does not fit the target.
    """
    args = _Arguments(target)
    depth = target.num_layers
    layers = recipe.layers or min(LAYERS, max(1, depth // 5))
    mask = choose_mask_token(tokenizer, target) if recipe.mask_token is None else recipe.mask_token
    heads = args["num_attention_heads"]
    return DrafterConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=recipe.intermediate_size or args["intermediate_size"],
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=args.get("num_key_value_heads") or heads,
        head_dim=args.get("head_dim") or target.hidden_size // heads,
        rms_norm_eps=args["rms_norm_eps"],
        vocab_size=target.vocab_size,
        block_size=recipe.block_size or BLOCK_SIZE,
        mask_token_id=target.vocab_size if mask is None else mask,
        target_layer_ids=recipe.taps or default_taps(depth, TAPS),
        num_target_layers=depth,
        rope=_rope(args),
        attention_bias=False,
        max_position_embeddings=context_length,
        has_mask_embedding=mask is None,
        layer_types=(SLIDING,) * layers if recipe.window else (),
        sliding_window=recipe.window,
        output_multiplier=args.get("output_multiplier") or 1.0,
        final_logit_softcapping=args.get("final_logit_softcapping"),
        causal_layers=(True,) * layers if recipe.causal else (),
        **(DFLASH2 if recipe.dflash2 else {}),
    )


def new_drafter(config: DrafterConfig, target: Target, seed: int) -> Drafter:
    """A drafter with random weights.

    A mask embedding begins as the mean of the table, and a convolution as the identity.
    """
    mx.random.seed(seed)
    drafter = Drafter(config)
    if config.has_mask_embedding:
        table = target.embedding(mx.arange(target.vocab_size)).astype(mx.float32)
        drafter.mask_embedding = table.mean(axis=0)
    for layer in drafter.layers if config.conv_kernel_size else ():
        for convolution in (layer.attention_conv, layer.mlp_conv):
            convolution.base_kernel[:, 0] = 1.0
            convolution.kernel_projection.weight *= 0.0
    mx.eval(drafter.parameters())
    return drafter


def with_passes(config: DrafterConfig, recipe: Recipe) -> DrafterConfig:
    """The drafter's configuration with as many draft passes as are asked for.

    Raises:
        UserError: they do not fit its blocks, or have no effect.
    """
    prefix = recipe.draft_prefix
    if recipe.draft_passes is None and prefix is None:
        return config
    passes = config.draft_passes if recipe.draft_passes is None else recipe.draft_passes
    if passes == 1 and prefix is not None:
        raise UserError("`draft_prefix` is for a second pass; give --draft-passes 2 as well.")
    if passes == 2 and config.block_size < 3:
        raise UserError(f"Blocks of {config.block_size} are too small for two draft passes.")
    if passes == 2 and prefix is None:
        prefix = config.draft_prefix or max(2, config.block_size // 4)
    return replace(config, draft_passes=passes, draft_prefix=prefix)


def default_taps(depth: int, count: int) -> tuple[int, ...]:
    """``count`` layers by the published spacing, ``round(1 + i (depth - 4) / (count - 1))``.

    They lie between the second layer and the third from the end. A target too shallow for that is
    tapped as evenly as it can be, with fewer taps if it has fewer layers.
    """
    if count == 1:
        return (depth // 2,)
    if depth - 3 >= count:
        return tuple(round(1 + i * (depth - 4) / (count - 1)) for i in range(count))
    count = min(count, depth)
    return tuple(round(i * (depth - 1) / max(count - 1, 1)) for i in range(count))


def choose_mask_token(tokenizer: TokenizerWrapper, target: Target) -> int | None:
    """A token that no text holds, or None: then the drafter learns an embedding of its own.

    The first choice is a padded row of the embedding table, as in z-lab's drafters for Qwen3; the
    second the last special token that neither ends nor pads a text and that the chat template
    does not write.
    """
    used = 1 + max(tokenizer.get_vocab().values())
    if used < target.vocab_size:
        return used
    taken = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    taken |= set(tokenizer.eos_token_ids)
    if tokenizer.has_chat_template:
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        taken |= _written(tokenizer, chat)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    free = [i for i in special - taken if i < target.vocab_size]
    return max(free, default=None)


def _written(tokenizer: TokenizerWrapper, chat: list[dict[str, str]]) -> set[int]:
    """The tokens of a chat, to learn which ones the template writes."""
    try:
        return set(chat_tokens(tokenizer, chat))
    except UserError as error:
        raise UserError(f"{error} Give --mask-token, a token that no text holds.") from error


class _Arguments(dict):
    """The target's own configuration, by name."""

    def __init__(self, target: Target):
        super().__init__(dataclasses.asdict(target.args))

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"The target's config names no {name}, from which a new drafter takes its own; begin "
            "with --init-from."
        )


def _rope(args: _Arguments) -> RopeConfig:
    nested = args.get("rope_parameters") or {}
    # Gemma 4 has rotations of its own for layers of each kind.
    nested = nested.get("full_attention") or nested
    return RopeConfig(
        rope_type="default",
        theta=args.get("rope_theta") or nested.get("rope_theta") or args["rope_theta"],
        factor=1.0,
        attention_factor=1.0,
        traditional=False,
    )
