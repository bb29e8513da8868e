"""The block sizes of one generation: fixed, or controlled by what rounds cost and accept."""

import copy

from ..generation.request import AUTO, Request
from ..loading.pair import Pair
from .calibration import time_choice
from .choose import Chooser
from .costs import GREEDY, CostTable
from .policy import FIRST_ACCEPTANCE, BlockController, BlockSize, FixedBlock
from .tuning import store_if_moved, tune


class Sizing:
    """What the round loop asks before a round, and tells after it.

    Attributes:
        largest: rows of the largest round.
        auto: whether sizes follow costs and acceptance.
    """

    auto = False

    def __init__(self, policy: BlockSize, largest: int):
        self._policy = policy
        self.largest = largest

    def choose(self, context: int) -> int:
        """Rows of the next round, after ``context`` committed tokens."""
        return self._policy.choose(context)

    def observe(self, rows: int, accepted: int, context: int, seconds: float | None) -> None:
        """Take in a round that was read, and its time if that is known."""
        self._policy.observe(rows, accepted)

    def plain_seconds(self, tokens: int, context: int) -> float:
        """What plain decoding would take for so many tokens; 0 if that is not known."""
        return 0.0

    def finish(self) -> None:
        """Remember what the text has taught."""


class AutoSizing(Sizing):
    """Sizes by the pair's cost table, which every round corrects.

    Args:
        model: the pair.
        table: its costs.
        largest: the most rows a round may have.
        choice: how the text's tokens are chosen, as the table names it.
        remember: whether the table is the pair's own, to be stored.
    """

    auto = True

    def __init__(self, model: Pair, table: CostTable, largest: int, choice: str, remember: bool):
        acceptance = FIRST_ACCEPTANCE if table.acceptance is None else table.acceptance
        sizes = [size for size in table.sizes if size <= largest]
        controller = BlockController(sizes, self._column, acceptance, self._confirmed)
        super().__init__(controller, sizes[-1])
        self._model = model
        self._table = table
        self._choice = choice
        self._remember = remember
        self._examined = self._accepted = 0

    def _column(self, context: int) -> dict[int, float]:
        return self._table.column(context, self._choice)

    def _confirmed(self, context: int) -> bool:
        return self._table.confirmed(1, context)

    def observe(self, rows: int, accepted: int, context: int, seconds: float | None) -> None:
        super().observe(rows, accepted, context, seconds)
        self._examined += min(accepted + 1, rows - 1)
        self._accepted += accepted
        if seconds is not None:
            self._table.learn(rows, context, seconds, self._choice)

    def plain_seconds(self, tokens: int, context: int) -> float:
        return tokens * self._column(context)[1]

    def finish(self) -> None:
        self._table.learn_acceptance(self._examined, self._accepted)
        if self._remember:
            store_if_moved(self._model, self._table)


def sizing_for(model: Pair, request: Request) -> Sizing:
    """The sizes that ``request`` asks for; measures first if nobody has."""
    size = request.block_size
    if size == AUTO and request.max_tokens <= 1:
        # A single token is the bonus of a round of any size.
        size = 1
    if size != AUTO:
        return Sizing(FixedBlock(size), size)
    table = tune(model)
    users = request.processors or request.sampling.sampler is not None
    if users or request.quantization is not None or request.max_kv_size is not None:
        # A user's function must not be called out of turn to be timed. What rounds with one, or on
        # other caches than the target's own, take is learned on the way and says nothing of others.
        return AutoSizing(
            model, copy.deepcopy(table), request.largest_block, GREEDY, remember=False
        )
    choice = _choice(request)
    sizing = AutoSizing(model, table, request.largest_block, choice, remember=True)
    if choice not in table.choices:
        chooser = Chooser(request.sampling, request.penalties, keep_logprobs=request.logprobs)
        table.choices[choice] = time_choice(model.target, model.drafter, chooser, table.sizes)
    return sizing


def _choice(request: Request) -> str:
    """What there is to compute when tokens are chosen, as one name."""
    sampling, penalties = request.sampling, request.penalties
    parts = {
        "temp": not sampling.greedy,
        "top_p": not sampling.greedy and 0 < sampling.top_p < 1,
        "top_k": not sampling.greedy and sampling.top_k > 0,
        "min_p": not sampling.greedy and sampling.min_p > 0,
        "rejection": not sampling.greedy and sampling.acceptance == "rejection",
        "bias": bool(penalties.logit_bias),
        "repetition": bool(penalties.repetition_penalty),
        "presence": bool(penalties.presence_penalty),
        "frequency": bool(penalties.frequency_penalty),
        "logprobs": request.logprobs,
    }
    return "+".join(name for name, present in parts.items() if present) or GREEDY
