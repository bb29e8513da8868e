"""The one table of a generation's options.

:func:`~dflash_mlx.stream_generate` has them as keywords, and the command line makes its flags from
them. A field is where it is checked and used: how a token is drawn in
:class:`~dflash_mlx.engine.sampling.Sampling` and :class:`~dflash_mlx.engine.penalties.Penalties`,
the target's caches in :class:`~dflash_mlx.engine.cache_options.CacheOptions`, the rounds in
:class:`~dflash_mlx.engine.request.RoundOptions`, and what is about the text here.

A field made by :func:`~dflash_mlx.engine.option.option` is a flag of the command line as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ..engine.option import option
from ..engine.request import RoundOptions
from ..errors import UserError, did_you_mean


@dataclass(frozen=True)
class Options(RoundOptions):
    """What :func:`~dflash_mlx.stream_generate` can be told.

    Attributes:
        stop: strings that end the text; they are not part of it.

    Raises:
        UserError: a value is out of its range.
    """

    stop: str | Sequence[str] = option(
        (), "a string that ends the text; repeatable", group="rounds and text"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stops, Sequence) or not all(isinstance(s, str) for s in stops):
            raise UserError(f"`stop` must be a string or a list of strings, not {self.stop!r}.")
        if not all(stops):
            raise UserError("A `stop` string is empty.")
        object.__setattr__(self, "stop", tuple(stops))

    @classmethod
    def of(cls, keywords: Mapping[str, object], unknown: Mapping[str, object]) -> "Options":
        """The options among the ``keywords`` of a function, which took ``unknown`` ones as well.

        Raises:
            UserError: there are unknown ones, or a value is out of its range.
        """
        names = [f.name for f in fields(cls)]
        if unknown:
            raise UserError(
                " ".join(f"There is no option `{x}`{did_you_mean(x, names)}" for x in unknown)
            )
        return cls(**{name: keywords[name] for name in names if name in keywords})

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, object]) -> "Options":
        """The options that ``keywords`` name, see :meth:`of`."""
        unknown = {name: keywords[name] for name in keywords.keys() - {f.name for f in fields(cls)}}
        return cls.of(keywords, unknown)
