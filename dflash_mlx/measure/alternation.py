"""Every arm on every prompt, several times, in alternating order."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import UserError, counted
from .arms import PLAIN, Arm
from .run import Case, Run, first_difference, measure

WARM_UP_TOKENS = 32
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        arms: plain decoding first.
        cases: prompts, each at its length.
        repeats: how often each arm runs on each case.
        max_tokens: how many tokens a run emits at most.
    """

    arms: Sequence[Arm]
    cases: Sequence[Case]
    repeats: int
    max_tokens: int

    @property
    def runs(self) -> int:
        """How many runs there will be."""
        return len(self.arms) * len(self.cases) * self.repeats


def warm_up(
    arms: Sequence[Arm], cases: Sequence[Case], announce: Callable[[str], None]
) -> tuple[list[Arm], list[str]]:
    """Run every arm once at every length, so that no measured run compiles or allocates first.

    Returns:
        The arms that can run, and a sentence on each that mlx-lm refuses.

    Raises:
        UserError: dflash-mlx itself refuses one, or it fails.
    """
    usable, notes = [], []
    for arm in arms:
        announce(f"warm-up, {arm.name}")
        try:
            for case in {case.context: case for case in cases}.values():
                measure(arm, case, WARM_UP_TOKENS, 0)
        except UserError:
            raise
        except ValueError as error:
            notes.append(f"Left out {arm.name}: mlx-lm says {str(error)!r}.")
        except (MemoryError, RuntimeError) as error:
            raise UserError(
                f"{arm.name} fails in the warm-up with {error!r}. If memory does not suffice, "
                "measure a smaller model or a shorter --context."
            ) from error
        else:
            usable.append(arm)
    return usable, notes


def measure_all(
    plan: Plan,
    runs: list[Run],
    answers: dict[str, list[int]],
    announce: Callable[[str], None],
    advance: Callable[[], None],
) -> str | None:
    """Measure everything; what was measured stays in any case, and its texts are judged.

    Args:
        plan: what to measure.
        runs: gets what was measured.
        answers: gets the tokens that plain decoding emitted first, by the prompt's id.
        announce: is told what is about to run.
        advance: is called after each run.

    Returns:
        None, or a sentence on the run that failed, which is then the last one.

    Raises:
        KeyboardInterrupt: after the runs so far have been judged.
    """
    texts: list[list[int]] = []
    visits = ((i, case) for i in range(plan.repeats) for case in plan.cases)
    try:
        for visit, (repeat, case) in enumerate(visits):
            for arm in alternating(plan.arms, visit):
                what = f"{arm.name}, {case.prompt}, {repeat + 1} of {plan.repeats}"
                announce(what)
                run, tokens = measure(arm, case, plan.max_tokens, repeat)
                texts.append(tokens)
                runs.append(run)
                if arm.name == PLAIN:
                    answers.setdefault(case.prompt, tokens)
                advance()
    # Memory that does not suffice, or what mlx-lm refuses in the midst of a text.
    except (MemoryError, RuntimeError, ValueError) as error:
        length = counted(len(case.tokens), "token")
        return f"Stopped: {what}, a prompt of {length}, failed with {error!r}."
    finally:
        judge(runs, texts, plan.arms)
    return None


def judge(runs: Sequence[Run], texts: Sequence[list[int]], arms: Sequence[Arm]) -> None:
    """Mark each run whose text should be plain's with whether it is.

    Args:
        runs: what was measured.
        texts: the tokens that each of them emitted; an interrupt may leave one without its run.
        arms: that ran.
    """
    promised = {arm.name for arm in arms if arm.same_text}
    plain: dict[tuple[str, int], list[int]] = {}
    for run, tokens in zip(runs, texts, strict=False):
        if run.arm == PLAIN:
            plain.setdefault((run.prompt, run.context), tokens)
    for run, tokens in zip(runs, texts, strict=False):
        key = run.prompt, run.context
        if run.arm in promised and key in plain:
            run.differs_at = first_difference(tokens, plain[key])
            run.same_text = run.differs_at is None


def alternating(arms: Sequence[T], visit: int) -> Iterable[T]:
    """The arms in another order at each visit: each place in turn, and either neighbour.

    A machine that grows warm, or slow for a while, then does not favour one of them.
    """
    start = visit // 2 % len(arms)
    order = [*arms[start:], *arms[:start]]
    return reversed(order) if visit % 2 else order
