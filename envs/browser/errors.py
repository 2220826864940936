"""What can go wrong with a browser that is no mistake of the user."""


class CrashedError(Exception):
    """The browser or its page died. The browser is closed; open another."""


class HungError(Exception):
    """The page did not answer within its patience, twice or for good. The browser is closed; open another."""


class ScriptError(Exception):
    """A script given to `evaluate` raised an exception, or ran so long that it was stopped; the page goes on."""
