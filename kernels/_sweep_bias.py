"""The gradient of an additive mask: its truth, and the error that rounding alone explains.

It is the gradient of the scores, unscaled, summed over what the mask is broadcast over. A kernel writes it once per
head and sequence in the type of the inputs; the sum is taken of what was written. Its terms may cancel (those of a row
add up to zero), so the size that its errors are measured against is that of the terms.
"""

import math

import _sweep_text


def add(truth, made, ds, squares, near_ds):
    """Put value, size and healthy rounding of `dbias` to those of the truth.

    `ds` is the gradient of the scores, `squares` what its rounding errors are proportional to, squared; `near_ds` the
    gradient as a kernel of half precision has it before it writes it; in float32 the truth's `ways` have one each.
    """
    shape, kind = made["bias"].shape, made["bias"].dtype
    truth.values["dbias"], truth.scales["dbias"] = ds.sum_to_size(shape), squares.sum_to_size(shape)
    for way in truth.ways:
        if near_ds is None:
            way["dbias"] = way["dscores"].sum_to_size(shape)
        else:
            way["dbias"] = near_ds.to(kind).double().sum_to_size(shape).to(kind).double()


def shared(case):
    """How many numbers each one of `dbias` is the sum of."""
    full = zip(case["bias_shape"], _sweep_text.scores(case))  # noqa: B905 - Python 3.8
    return math.prod(size for letter, size in full if letter == "1")


def count(case):
    """How many numbers `dbias` has."""
    return math.prod(_sweep_text.scores(case)) // shared(case)


def looser(case):
    """How many times further from the truth than others a backend may be that adds up in the type of the bias."""
    # flex adds to the buffer atomically: each addition rounds what is there by then, a random walk.
    return max(1.0, (shared(case) / 2) ** 0.5) if case["backend"] == "flex" and case["dtype"] != "float32" else 1.0
