"""The version of attn-doctor."""

__version__ = "0.1.0"
