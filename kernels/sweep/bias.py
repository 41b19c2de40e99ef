"""The gradient of an additive mask: how many numbers it has, and how far a backend may be from it.

It is the gradient of the scores, summed over what the mask is broadcast over (see `attention.reference`).
"""

import math

from . import source


def terms(case):
    """Return how many numbers each element of `dbias` is the sum of."""
    full = zip(case["bias_shape"], source.scores(case))  # noqa: B905 - Python 3.8
    return math.prod(size for letter, size in full if letter == "1")


def count(case):
    """Return how many elements `dbias` has."""
    return math.prod(source.scores(case)) // terms(case)


def looser(case):
    """Return the permitted error over that of others, for a backend that adds in the type of the bias."""
    # flex adds to the buffer atomically: each addition rounds the sum so far, a random walk.
    return max(1.0, (terms(case) / 2) ** 0.5) if case["backend"] == "flex" and case["dtype"] != "float32" else 1.0
