"""What the harness raises."""


class KernelError(Exception):
    """A kernel failed a check.

    Attributes:
        check: Which one: ``compile``, ``lint``, ``limits`` (threads, threadgroup memory),
            ``divergence``, ``lane`` (an absent one is read), ``bounds``, ``read-only``,
            ``canary``, ``address`` or ``undefined`` (sanitizers), ``race``, ``schedule`` (two
            schedules differ), ``hang``, or ``crash``.
    """

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"[{check}] {message}")
        self.check = check
