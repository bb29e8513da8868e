"""Losslessness: the text of oracle drafters of every acceptance must be plain decoding's."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.cache.quantized import KVQuantization
from dflash_mlx.drafter.selector import CandidateSelector
from dflash_mlx.engine.queue import RoundQueue
from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.target.target import Target
from support.batch import STEP, run
from support.oracle import OracleDrafter
from support.plain import clear_case, clear_steps
from support.tiny import VOCAB, tiny_model

GREEDY, COUPLED = Sampling(), Sampling(temp=0.9, top_p=0.95, seed=11)
SAMPLINGS = {"greedy": GREEDY, "coupled": COUPLED}
TAPS = (0, 2)
# What is rounded differently by a hair may be quantized a whole step apart.
QUANTIZED_MARGIN = 1e-2


def turns(block_size: int) -> list[int]:
    """Accepted drafts of a cycle of rounds in which each length that differs follows each."""
    counts = sorted({0, 1, block_size // 2, block_size - 1} & set(range(block_size)))
    # A de Bruijn sequence of pairs: the Lyndon words of one and of two lengths, in their order.
    return [
        x for i, a in enumerate(counts) for x in (a, *sum(((a, b) for b in counts[i + 1 :]), ()))
    ]


@dataclass(frozen=True, eq=False)
class Kind:
    """A target and what it keeps.

    Attributes:
        family: of :func:`tiny_model`.
        changes: of its config.
        prompt: tokens of a prompt from which on a text comes to where its caches wrap.
        n: tokens of a text.
        lengths: of prompts at the edges of its caches.
        max_kv_size: positions that a layer keeps at most, or None.
        quantization: of the caches, or None.
    """

    family: str
    changes: Mapping[str, object] = field(default_factory=dict)
    prompt: int = 20
    n: int = 40
    lengths: Sequence[int] = ()
    max_kv_size: int | None = None
    quantization: KVQuantization | None = None

    @functools.cached_property
    def model(self) -> nn.Module:
        return tiny_model(self.family, **self.changes)

    @functools.cache  # noqa: B019
    def case(
        self, length: int, n: int, sampling: Sampling = GREEDY, row: int = 0
    ) -> tuple[list[int], list[int]]:
        """A prompt of ``length`` and ``n`` tokens of plain text, as batch row ``row`` draws it."""
        if self.max_kv_size is None and self.quantization is None:
            return clear_case(self.model, length, n, sampling, row, row)
        options: dict[str, object] = {"prefill_step_size": STEP}
        if (kv := self.quantization) is not None:
            options |= {"kv_bits": kv.bits, "kv_group_size": kv.group_size}
            options |= {"quantized_kv_start": kv.start, "margin": QUANTIZED_MARGIN}
        make = functools.partial(make_prompt_cache, max_kv_size=self.max_kv_size)
        return clear_steps(self.model, length, n, row, make, **options)

    def check(
        self,
        block_size: int,
        accept: Callable[[int], int | list[int]],
        lengths: Sequence[int] | None = None,
        n: int | None = None,
        sampling: Sampling = GREEDY,
        selector: CandidateSelector | None = None,
    ) -> tuple[list[list[int]], list[list[int]], RoundQueue]:
        """Rounds over a batch of prompts emit their plain text, and accept what they should.

        Args:
            block_size: of every round.
            accept: as of :class:`OracleDrafter`.
            lengths: of the prompts, one a batch row; the kind's own by default.
            n: tokens of text; the kind's own by default.
            sampling: how tokens are drawn.
            selector: as of :class:`OracleDrafter`.

        Returns:
            What each batch row emitted, the accepted drafts of each round and row, and the queue,
            with a round in flight.
        """
        n, lengths = n or self.n, lengths or [self.prompt]
        cases = [self.case(length, n, sampling, row) for row, length in enumerate(lengths)]
        target = Target(self.model, TAPS)
        try:
            truth = [prompt + text for prompt, text in cases]
            drafter = OracleDrafter(truth, accept, VOCAB, max(block_size, 16), selector)
            prompts = [prompt for prompt, _ in cases]
            caches = {"max_kv_size": self.max_kv_size, "quantization": self.quantization}
            emitted, accepted, queue = run(
                target, drafter, prompts, n, block_size, sampling, **caches
            )
        finally:
            target.release()
        assert [row[:n] for row in emitted] == [text for _, text in cases]
        for row in range(len(cases)):
            done = 0
            for number, counts in enumerate(accepted):
                done += counts[row] + 1
                if done > n:
                    break
                wanted = accept(number)
                assert counts[row] == (wanted if isinstance(wanted, int) else wanted[row])
        return emitted, accepted, queue

    def check_batch(
        self, block_size: int, lengths: Sequence[int], n: int | None = None, sampling=GREEDY
    ) -> None:
        """The same of a ragged batch, whose rows are at different places of the cycle."""
        cycle = turns(block_size)

        def accept(number: int) -> list[int]:
            return [cycle[(number + 5 * row) % len(cycle)] for row in range(len(lengths))]

        self.check(block_size, accept, lengths, n, sampling)
