"""Look up the keys of a raw config, wherever they are, and refuse those that nobody looks up."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from ..drafter.checks import reject, shown
from ..errors import UserError

_OPTIONS = "on the command line"
# The option that fills in a key, where there is one.
_FLAGS = {"block_size": "--block-size", "mask_token_id": "--mask-token-id"}
# Training, tokenizer and bookkeeping keys that cannot change a forward pass. auto_map names code
# in the repository, which is never run; the head is the target's or its own, whatever is tied.
_INERT = """
_attn_implementation _commit_hash _name_or_path architectures attention_dropout auto_map
bos_token_id chunk_size_feed_forward decoder_start_token_id dtype eos_token_id gate_temperature
has_no_defaults_at_init id2label initializer_range is_decoder is_encoder_decoder label2id
loss_decay_gamma max_anchors max_window_layers model_type name_or_path num_anchors
output_attentions output_hidden_states pad_token_id pretraining_tp problem_type
quantization_config return_dict sep_token_id speculators_config speculators_model_type
speculators_version tie_word_embeddings torch_dtype train_embed_tokens transformers_version
use_cache
"""
# What transformers' base class writes into every config, some versions with the values of a
# text generation that a drafter never does.
_HUGGING_FACE = """
add_cross_attention bad_words_ids begin_suppress_tokens cross_attention_hidden_size
diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
num_return_sequences output_scores prefix pruned_heads remove_invalid_values repetition_penalty
return_dict_in_generate suppress_tokens task_specific_params temperature tf_legacy_loss
tie_encoder_decoder tokenizer_class top_k top_p torchscript typical_p use_bfloat16
"""
# Keys that switch on what this version does not run, and those that are not off by false alone. A
# drafter with a part left out still runs and still gives text: only its acceptance collapses. So a
# part is either implemented or refused; nothing is skipped.
_UNSUPPORTED = {
    "markov_rank": "DSpark's heads",
    "markov_head_type": "DSpark's heads",
    "dspark_markov_rank": "DSpark's heads",
    "dspark_fixup_head_type": "DSpark's heads",
    "dspark_bonus_anchor": "DSpark's heads",
    "enable_confidence_head": "DSpark's heads",
    "enable_hidden_correction": "DFly's hidden correction",
    "hidden_correction_intermediate_size": "DFly's hidden correction",
    "projector_type": "another projector",
    "model_arch": "another projector",
    "fusion_type": "gated tap fusion",
    "partial_rotary_factor": "partial rotary embedding",
    "backbone_rotary_base": "a second rotary base",
    "attention_sink_bias": "attention sinks",
    "attention_sink": "attention sinks",
    "attention_value_scale": "an attention value scale",
    "gating": "gated attention",
    "attn_output_gate": "gated attention",
    "attention_mode": "multi-head latent attention (MLA)",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "q_lora_rank": "multi-head latent attention (MLA)",
    "sliding_windows": "a window for each layer",
    "hc_mult": "hyper-connection streams",
    "hyper_connection_streams": "hyper-connection streams",
    "num_experts": "mixture-of-experts layers",
    "num_local_experts": "mixture-of-experts layers",
    "mlp_bias": "biases in the MLP",
    "hidden_act": "an activation other than silu",
    "quantization": "weights quantized otherwise",
    "compression_config": "weights quantized otherwise",
}
# Values that switch nothing on, where false alone does not: no activation is called false.
_OFF = {
    "projector_type": ("dflash",),
    "model_arch": ("dflash",),
    "fusion_type": ("concat_fc",),
    "partial_rotary_factor": (1,),
    "attention_value_scale": (1,),
    "hc_mult": (False, 1),
    "hyper_connection_streams": (False, 1),
    "hidden_act": ("silu",),
}


@dataclass(frozen=True, kw_only=True)
class Additions:
    """Values that a config.json may lack and that nothing else tells.

    Attributes:
        block_size: The config's ``block_size``, in the checkpoint's own meaning, if it has none.
        mask_token_id: The config's ``mask_token_id``, if it has none.
        attention_factor: YaRN's amplitude, in place of the one that the config leads to: engines
            disagree on it where a config gives ``mscale`` instead.
        allow_final_tap: Whether a tap on the target's last layer is its output BEFORE the final
            norm. Trainers that read Hugging Face's last hidden state saw it after that norm, and
            a config does not say.
    """

    block_size: int | None = None
    mask_token_id: int | None = None
    attention_factor: float | None = None
    allow_final_tap: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """What was added, for the record."""
        return {key: value for key, value in asdict(self).items() if value not in (None, False)}


class Keys:
    """The keys of a config: at its top level, in one object below it, and what the user adds.

    Copies in different places must agree. Null is the same as absent.

    Args:
        config: The parsed config.json.
        nested_key: The object below the top level that has some of the keys.
        additions: What the user adds to the config.
        defaults: What keys that are nowhere mean by the format's definition.

    Raises:
        UserError: The value of ``nested_key`` is not an object.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        nested_key: str,
        additions: Additions,
        defaults: Mapping[str, Any],
    ):
        self.additions, self.defaults = additions, defaults
        self._places = {
            "at the top level": {key: config[key] for key in config if key != nested_key},
            f"in {nested_key}": nested_object(config, nested_key),
            _OPTIONS: {key: getattr(additions, key) for key in _FLAGS},
        }
        self._read: set[str] = set()

    def all(self, *keys: str) -> dict[str, Any]:
        """Every value that is given for a key or for a synonym of it, by key and place."""
        self._read.update(keys)
        return {
            f"{key} {place}": values[key]
            for key in keys
            for place, values in self._places.items()
            if values.get(key) is not None
        }

    def get(self, *keys: str, default: Any = None) -> Any:
        """The value that all places agree on, of a key or of one of its synonyms.

        Raises:
            UserError: Two places have different values.
        """
        found = self.all(*keys)
        if not found:
            return self.defaults.get(keys[0], default)
        (first, value), *others = found.items()
        for where, other in others:
            if other != value or type(other) is not type(value):
                _disagree(first, value, where, other)
        return value

    def required(self, *keys: str) -> Any:
        """As :meth:`get`, but there must be one.

        Raises:
            UserError: Names the key and the places that were searched.
        """
        value = self.get(*keys)
        if value is None:
            places = [place for place in self._places if place != _OPTIONS]
            flag = _FLAGS.get(keys[0])
            hint = f", or give it to `dflash-mlx convert` as {flag}" if flag else ""
            raise UserError(
                f"The config has no {keys[0]} {' or '.join(places)}; add the value that the "
                f"drafter was trained with{hint}."
            )
        return value

    def subset(self, keys: Iterable[str]) -> dict[str, Any]:
        """Those of the keys that have a value."""
        found = {key: self.get(key) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def refuse_unsupported(self) -> None:
        """Check that no key switches on what this version does not run.

        Raises:
            UserError: Names everything found, with the key and its value.
        """
        found = [
            f"{part} ({where}: {shown(value, 60)})"
            for key, part in _UNSUPPORTED.items()
            for where, value in self.all(key).items()
            if value not in _OFF.get(key, (False,))
        ]
        if found:
            raise unsupported(", ".join(found))

    def refuse_unread(self) -> None:
        """A key nobody read may be the one that changes the model, so it is an error.

        Raises:
            UserError: Names the keys and their places.
        """
        known = self._read.union(_INERT.split(), _HUGGING_FACE.split())
        unknown = [
            f"{key} {place}"
            for place, values in self._places.items()
            for key, value in values.items()
            if key not in known and value is not None
        ]
        if unknown:
            raise UserError(
                f"The config has keys this version does not know: {', '.join(sorted(unknown))}. "
                "If they do not change the model, remove them from a local copy; otherwise use a "
                "newer dflash-mlx."
            )


def nested_object(config: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    """The object under a key, empty if there is none.

    Args:
        config: The object that has the key.
        key: The key.
        where: What messages put before the key: ``"speculators_config."``.

    Raises:
        UserError: The value is not an object.
    """
    nested = config.get(key)
    if nested is not None and not isinstance(nested, Mapping):
        reject(where + key, nested, "an object")
    return nested or {}


def contradict(key: str, value: Any, other: str, other_value: Any) -> NoReturn:
    """Refuse two keys that cannot both be right.

    Raises:
        UserError: Names both with their values.
    """
    raise UserError(
        f"{key} is {shown(value)} but {other} is {shown(other_value)}; one of the two is wrong."
    )


def _disagree(first: str, value: Any, second: str, other: Any) -> NoReturn:
    key, place = first.split(" ", 1)
    other_key, other_place = second.split(" ", 1)
    named = "" if other_key == key else f"{other_key} is "
    if other_place == _OPTIONS:
        advice = "an option may only fill in what the config does not say"
    else:
        advice = "keep the one that the drafter was trained with"
    raise UserError(
        f"{key} is {shown(value)} {place} but {named}{shown(other)} {other_place}; {advice}."
    )


def unsupported(what: str) -> UserError:
    """That a drafter has something which this version does not run."""
    return UserError(
        f"This drafter has {what}, which this version does not run; use another drafter for this "
        "target."
    )
