"""A flash-attn of plain arithmetic: the functions that libraries of ring attention call, on any device."""

__version__ = "2.8.3"
