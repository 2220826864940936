"""The one exception that a user is meant to read."""


class UserError(Exception):
    """A mistake that the caller can mend: bad file, unknown name, impossible combination.

    The message says what was wrong, where (file, key, shapes) and what to do. The command line prints it alone, without a
    traceback, and exits with 1.
    """
