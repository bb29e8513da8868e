"""How messages are worded."""


def counted(number: int | str, thing: str, things: str | None = None) -> str:
    """A number of things, such as "1 layer" or "2 layers".

    Args:
        number: how many; a word, such as No, stands for several.
        thing: the name of one.
        things: the name of several, if it is not made by an s.
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"
