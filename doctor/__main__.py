"""`python -m doctor` is the same program as `attn-doctor`."""

import os
import sys


def _leave_out_current_folder() -> None:
    """Import nothing from the current folder, where `-m` looks first: it may hold a repository of anyone."""
    checkout = os.path.realpath(f"{__file__}/../..")
    if sys.path and sys.path[0] and os.path.realpath(os.curdir) == os.path.realpath(sys.path[0]) != checkout:
        del sys.path[0]


if __name__ == "__main__":
    _leave_out_current_folder()
    from doctor.cli.entry import program

    program()
