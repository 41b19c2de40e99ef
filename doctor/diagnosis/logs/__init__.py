"""From a log to the cause: read it once, match signatures, choose the root cause, find what fixes it."""
