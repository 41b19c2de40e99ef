"""Renderers: one module per output format; each reads the finished report only."""
