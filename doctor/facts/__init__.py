"""The vocabulary of facts, versions, and facts derived from other facts."""

from . import derived

__all__ = ["derived"]  # importing it declares every derived key
