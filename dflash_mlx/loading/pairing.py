"""Whether a drafter was made for a target."""

from typing import Protocol

from ..drafter.config import DrafterConfig
from ..errors import UserError, counted


class Sizes(Protocol):
    """What is asked of a target, which may not be loaded yet."""

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""


def check_pair(config: DrafterConfig, target: Sizes) -> None:
    """Check that a drafter was made for this target.

    Raises:
        UserError: naming what does not fit, with both values.
    """
    _check_width(config, target)
    layers = target.num_layers
    if config.num_target_layers not in (None, layers):
        raise UserError(
            f"The drafter was made for a target of "
            f"{counted(config.num_target_layers, 'layer')}, but this target has {layers}."
        )
    if beyond := [i for i in config.target_layer_ids if i >= layers]:
        raise UserError(
            f"The drafter taps layers {list(config.target_layer_ids)}, but the target has only "
            f"{counted(layers, 'layer')}, so {beyond} do not exist."
        )
    if config.vocab_size > target.vocab_size:
        raise UserError(
            f"The drafter's vocabulary has {counted(config.vocab_size, 'token')}, but the target's "
            f"embedding table has only {counted(target.vocab_size, 'row')}."
        )
    borrows = not (config.has_mask_embedding or config.has_embed_tokens)
    if borrows and config.mask_token_id >= target.vocab_size:
        raise UserError(
            f"The drafter's mask token {config.mask_token_id} has no row in the target's embedding "
            f"table of {counted(target.vocab_size, 'row')}, and the checkpoint brings no "
            "mask_embedding."
        )


def _check_width(config: DrafterConfig, target: Sizes) -> None:
    width = target.hidden_size
    if config.target_hidden_size != width:
        taps = "each of its taps is" if config.target_layer_ids else "its features are"
        raise UserError(
            f"The drafter was made for another target: {taps} {config.target_hidden_size} wide, "
            f"but the target's hidden size is {width}."
        )
    own = {"embed_tokens": config.has_embed_tokens, "lm_head": config.has_lm_head}
    borrowed = [name for name, has in own.items() if not has]
    if config.hidden_size != width and borrowed:
        raise UserError(
            f"The drafter's layers are {config.hidden_size} wide and the target's hidden size is "
            f"{width}, so it cannot borrow the target's tables, but it brings no "
            f"{' and no '.join(borrowed)} of its own."
        )
