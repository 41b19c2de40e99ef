"""The names that the adapter of ring-flash-attn 0.1.8 imports; no test calls them."""


def is_flash_attn_greater_or_equal_2_10():
    """Answer as flash-attn 2.8 does."""
    return True


def _flash_attention_forward():
    raise AssertionError("no test attends through transformers")
