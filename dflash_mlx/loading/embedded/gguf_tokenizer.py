"""The tokenizer that a GGUF file describes in its metadata, as a Hugging Face tokenizer."""

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# ``tokenizer.ggml.token_type`` of tokens such as <|im_end|>, which no plain text encodes to.
CONTROL = 3


def build_tokenizer(
    metadata: dict[str, mx.array | str | list[str]], model_max_length: int
) -> PreTrainedTokenizerFast:
    """Build the byte-level BPE tokenizer of llama.cpp's ``smollm`` pre-tokenizer.

    Args:
        metadata: A GGUF's metadata, with the ``tokenizer.ggml.*`` keys and the chat template.
        model_max_length: The context length that the tokenizer announces.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])

    def token(kind: str) -> str:
        return tokens[metadata[f"tokenizer.ggml.{kind}_token_id"].item()]

    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=token("bos"),
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
        chat_template=metadata["tokenizer.chat_template"],
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
