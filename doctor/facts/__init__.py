"""The vocabulary of facts, versions, and facts derived from other facts."""
