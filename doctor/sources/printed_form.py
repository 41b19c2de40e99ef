"""Whether a text is what other programs print of an environment, which `printed` reads."""

from __future__ import annotations

import re

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
VERSION = r"\d[0-9A-Za-z.+!_-]*"
#: Reports that name a package without the word "version": of SGLang, verl and FlashInfer.
BARE = r"^(?:sglang|sgl_kernel|flashinfer_python): \d|^-+verl Info-+|^==== FlashInfer ===="
#: Lines that only such a report has.
_MARKS = "|".join((
    r"^Package +Version\b.*\n-+ +-+",  # pip list
    r"^# (?:packages in environment at|Name +Version +Build)",  # conda list
    r"^\[(?:pip3?|conda)\] \S",  # collect_env of torch and vLLM
    r"^[-* \t]*PyTorch version\b[^:\n]*: ",
    r"^[-* \t]*`(?:transformers|Accelerate|llamafactory)` version: ",
    r"^[-* \t]*(?:\S )?Diffusers version: ",
    BARE,
    r"^DeepSpeed general environment info",
    r"^==\(\(====\)\)== +Unsloth ",
    r"^\| NVIDIA-SMI ",
))  # fmt: skip
_FROZEN = rf"^{NAME}==\d\S*[ \t]*$"  # pip freeze


def is_printed(text: str) -> bool:
    """Return whether a text holds such a list or report; JSON and YAML files of facts do not."""
    return is_report(text) or (not _may_be_json(text) and re.search(_FROZEN, text, re.MULTILINE) is not None)


def is_report(text: str) -> bool:
    """Return whether a text holds more than pinned packages, which a requirements file looks like, too."""
    if text.lstrip().startswith(("[pip", "[conda]")):
        return True
    return not _may_be_json(text) and re.search(_MARKS, text, re.MULTILINE) is not None


def _may_be_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))
