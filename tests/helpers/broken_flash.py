"""flash-attn written out for a CPU, with one planted fault each: what only its interface can say."""

from tests.helpers.fake_libraries import FLASH

CAPPED = """    if softcap:
        s = softcap * torch.tanh(s / softcap)
"""
SOFTMAX = "    p = s.masked_fill(~keep, -1e30).softmax(-1) * keep\n"
LATE_CAP = """    s = s.masked_fill(~keep, -1e30)
    if softcap:
        s, keep = softcap * torch.tanh(s / softcap), keep.any(-1, keepdim=True)
    p = s.softmax(-1) * keep
"""

#: Fault → (text of the healthy library, text in its place), one or more.
FAULTS = {
    # One key more than was requested.
    "window_one_wide": (("j >= i - left", "j >= i - left - 1"),),
    # The window's far edge is counted from the top left corner, its near one from the bottom right.
    "window_from_the_top": (("j >= i - left", "j >= i - shift - left"),),
    # The cap lifts what the mask has put down.
    "softcap_after_mask": ((CAPPED, ""), (SOFTMAX, LATE_CAP)),
    # Backward does not know of the cap.
    "softcap_not_in_backward": (
        ("s = softcap * torch.tanh(s / softcap)", "s = s + (softcap * torch.tanh(s / softcap) - s).detach()"),
    ),
    # Scores are scaled after the cap.
    "softcap_before_scale": (
        ("* (scale or q.shape[-1] ** -0.5)", "* (1 if softcap else scale or q.shape[-1] ** -0.5)"),
        ("torch.tanh(s / softcap)", "torch.tanh(s / softcap) * (scale or q.shape[-1] ** -0.5)"),
    ),
    # Keys ahead of the query come nearer instead of further.
    "alibi_without_sign": (("(i - j).abs()", "(i - j)"),),
    # Distances are counted from the top left corner.
    "alibi_from_the_top": (("(i - j).abs()", "(i - shift - j).abs()"),),
    # All query heads of a group get the slope of its first one.
    "alibi_of_the_group": (("slopes[:, None, None]", "slopes[::group].repeat_interleave(group)[:, None, None]"),),
    # A sequence sees the first key of the next one.
    "sequences_leak": (("k[None, c:d], v[None, c:d]", "k[None, c:d + 1], v[None, c:d + 1]"),),
    # Causal in the longest sequence's way in all of them.
    "corner_of_the_longest": (
        ("    i, j = torch", "    shift = FAR or shift\n    i, j = torch"),
        ("import torch\n", "import torch\nFAR = 0\n"),
        ("    ends = zip", "    global FAR\n    FAR = max_seqlen_k - max_seqlen_q\n    ends = zip"),
        ("    return torch.cat([flash_attn_func", "    made = torch.cat([flash_attn_func"),
        ("for a, b, c, d in ends])\n", "for a, b, c, d in ends])\n    FAR = 0\n    return made\n"),
    ),
}  # fmt: skip


def source(name):
    """The library's source with this fault; the empty name is the healthy one."""
    text = FLASH
    for healthy, broken in FAULTS.get(name, ()):
        assert healthy in text, f"{name}: the library has no `{healthy}`"
        text = text.replace(healthy, broken)
    return text
