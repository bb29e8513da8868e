"""The target's features of a text: computed when needed, or kept on disk up to a bound."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ..errors import UserError
from .blocks import Sequence
from .disk import replacing, writing
from .learner import Encoding, Learner

# Bytes that a file's header takes at most.
_HEADER = 512


@dataclass
class FeatureCache:
    """Gives what the target says about a sequence, each time the same numbers.

    Attributes:
        learner: computes them.
        folder: keeps them, one file a sequence; None computes them anew each time. Processes
            share it: another one may ask for the sequence in the next epoch.
        limit: bytes that the folder may come to. When it is full, or was filled to a larger limit
            before, what is there is used and the rest computed: every epoch asks for every
            sequence once, so that dropping some for others would save nothing.
        rank: of this process.
        processes: that have such a cache; none may be called before all are made.

    Raises:
        UserError: a file is damaged, or cannot be written.
    """

    learner: Learner
    folder: Path | None = None
    limit: int = 0
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        learner, folder = self.learner, self.folder
        distils = learner.objective.loss == "kl"
        # What is there may be of another kind, of a run whose options were changed.
        self._kind = f"{learner.config.target_layer_ids} {learner.dtype} {distils}".encode()
        if folder is not None:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob("*.partial*") if self.rank == 0 else ():
                unfinished.unlink()
            whole = [file for file in folder.iterdir() if ".partial" not in file.name]
            self._room = (self.limit - sum(file.stat().st_size for file in whole)) / self.processes

    def __call__(self, sequence: Sequence) -> Encoding:
        if self.folder is None:
            return self.learner.encode(mx.array(sequence.tokens))
        name = hashlib.sha256(self._kind + sequence.tokens.tobytes()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        if path.exists():
            try:
                arrays = mx.load(str(path))
            except RuntimeError as error:
                raise UserError(f"{path} is damaged ({error}); remove it.") from error
            return Encoding(arrays["taps"], arrays.get("hidden"))
        encoding = self.learner.encode(mx.array(sequence.tokens))
        arrays = {"taps": encoding.features}
        if encoding.hidden is not None:
            arrays["hidden"] = encoding.hidden
        if sum(array.nbytes for array in arrays.values()) + _HEADER <= self._room:
            # A file that was cut short must not be taken for a whole one.
            with replacing(path, str(self.rank)) as partial:
                mx.save_safetensors(str(partial), arrays)
                self._room -= partial.stat().st_size
        return encoding
