"""The one exception that means "what you asked for cannot be done, and here is why"."""


class UserError(ValueError):
    """A mistake that the user can mend: a wrong id, a bad file, an option that does not fit.

    The message is one or two sentences: what was found, what was needed, and what to do.
    The command line prints it and exits with code 2; in Python it is a ``ValueError``.
    """
