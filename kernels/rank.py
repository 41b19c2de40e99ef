"""Entry of one rank under torch.distributed.run: `rank.py ORDER.json`; see `parallel/rank.py`."""

import importlib
import pathlib
import sys
import types

PACKAGE = "attn_doctor_kernels"
HERE = pathlib.Path(__file__).resolve().parent

if __name__ == "__main__":
    if sys.path and pathlib.Path(sys.path[0]).resolve() == HERE:
        del sys.path[0]
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(HERE)]
    sys.modules[PACKAGE] = package
    importlib.import_module(PACKAGE + ".parallel.rank").main(sys.argv[1])
