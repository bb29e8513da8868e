"""All of the doctor's checks, in order."""

from collections.abc import Iterator, Mapping

from ..loading.hub import find_local
from .finding import Finding
from .fit import check_fit
from .fused import check_fused_parts
from .given_pair import Given, check_pairing
from .self_test import check_self
from .storage import check_hub_cache, check_leftovers, check_own_cache
from .system import check_backend, check_blas, check_machine, check_packages


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
    yield from check_self()
    yield check_hub_cache()
    yield check_own_cache()
    if (left := check_leftovers(clean)) is not None:
        yield left
    if not models:
        return
    given = {what: Given(name, find_local(name, rev)) for what, (name, rev) in models.items()}
    pairing = check_pairing(given)
    if pairing is not None:
        yield pairing
        if pairing.status == "fault":
            # Of what is not a pair there is no more to say.
            return
    if "drafter" in given and given["drafter"].folder is not None:
        yield check_fused_parts(given["drafter"])
    yield check_fit(given, context)
