"""A byte-level BPE tokenizer, made by hand: token ``i`` below 256 is the byte ``i``."""

from collections.abc import Iterable, Sequence

from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    TokenizerWrapper,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS = 256
DETOKENIZERS = {"bpe": BPEStreamingDetokenizer, "naive": NaiveStreamingDetokenizer}


def byte_characters() -> list[str]:
    """The character that byte-level BPE writes each byte as, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


def byte_tokenizer(
    eos: Iterable[int] = (),
    words: Sequence[str] = (),
    detokenizer: str = "bpe",
    template: str | None = None,
) -> TokenizerWrapper:
    """A tokenizer of the 256 bytes, the special token ``EOS``, and ``words`` from 257 on.

    Args:
        eos: further tokens that end a text; ``EOS`` always does.
        words: texts that have a token of their own.
        detokenizer: mlx-lm's ``"bpe"`` or ``"naive"`` one.
        template: the chat template, if it has one.
    """
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
    return TokenizerWrapper(fast, DETOKENIZERS[detokenizer], eos_token_ids=list(eos))
