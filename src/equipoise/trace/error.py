"""The one error of traces."""


class TraceError(ValueError):
    """A trace that cannot be read or continued, and why."""
