"""The target's features of a text: computed when needed, or kept on disk up to a bound."""

import hashlib
from pathlib import Path

import mlx.core as mx

from ..errors import UserError
from .blocks import Sequence
from .disk import replacing, writing
from .learner import Features, Learner


class FeatureSource:
    """Gives the features of a sequence, each time the same numbers.

    Args:
        learner: computes them.
        folder: keeps them, one file a sequence; None computes them anew each time.
        limit: bytes that the folder may come to. When it is full, what is there is used and the
            rest computed: every epoch asks for every sequence once, so that dropping some for
            others would save nothing.

    Raises:
        UserError: a file is damaged, or cannot be written.
    """

    def __init__(self, learner: Learner, folder: Path | None = None, limit: int = 0):
        self._learner = learner
        self._folder = folder
        self._limit = limit
        self._used = 0
        taps, distils = learner.drafter.config.target_layer_ids, learner.objective.loss == "kl"
        # Features of another kind may be there, of a run whose options were changed.
        self._kind = f"{taps} {learner.dtype} {distils}".encode()
        if folder is not None:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob("*.partial.safetensors"):
                unfinished.unlink()
            self._used = sum(file.stat().st_size for file in folder.iterdir())

    def __call__(self, sequence: Sequence) -> Features:
        if self._folder is None:
            return self._learner.features(mx.array(sequence.tokens))
        name = hashlib.sha256(self._kind + sequence.tokens.tobytes()).hexdigest()[:32]
        path = self._folder / f"{name}.safetensors"
        if path.exists():
            try:
                arrays = mx.load(str(path))
            except RuntimeError as error:
                raise UserError(f"{path} is damaged ({error}); remove it.") from error
            return Features(arrays["taps"], arrays.get("hidden"))
        features = self._learner.features(mx.array(sequence.tokens))
        arrays = {k: v for k, v in features._asdict().items() if v is not None}
        size = sum(array.nbytes for array in arrays.values())
        if self._used + size <= self._limit:
            # A file that was cut short must not be taken for a whole one.
            with replacing(path) as partial:
                mx.save_safetensors(str(partial), arrays)
                self._used += partial.stat().st_size
        return features
