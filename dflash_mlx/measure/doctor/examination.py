"""All checks, in order."""

from collections.abc import Iterator, Mapping

from .blas import check_blas
from .caches import check_hub_cache, check_leftovers, check_own_cache
from .finding import Finding
from .fit import check_fit
from .kernels import check_kernels
from .pairing import check_pairing
from .system import check_backend, check_machine, check_packages
from .trial import check_trial


def examine(
    models: Mapping[str, tuple[str, str | None]], context: int, clean: bool
) -> Iterator[Finding]:
    """Look at everything, and say each thing as soon as it is known.

    Args:
        models: of which to say whether they belong together and fit in memory: what each is, its
            name and revision.
        context: tokens for which they should fit.
        clean: remove what interrupted conversions left.
    """
    yield check_machine()
    yield check_packages()
    yield check_backend()
    if (blas := check_blas()) is not None:
        yield blas
    yield from check_trial()
    yield check_hub_cache()
    yield check_own_cache()
    if (left := check_leftovers(clean)) is not None:
        yield left
    if models:
        pairing = check_pairing(models)
        if pairing is not None:
            yield pairing
        # Of what is not a pair there is no more to say.
        if pairing is None or pairing.status != "fault":
            if (kernels := check_kernels(models)) is not None:
                yield kernels
            yield check_fit(models, context)
