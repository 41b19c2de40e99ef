"""A transformers of two functions: all that the adapter of ring-flash-attn imports."""
