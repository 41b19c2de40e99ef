"""Start one program by hand or for the doctor: `python kernels NAME < request.json`.

The folder becomes a package of a name that no library has, whatever the folder itself is called, and it leaves
`sys.path`: no module here can shadow a library of the target environment.
"""

import importlib
import pathlib
import sys
import types

PACKAGE = "attn_doctor_kernels"
HERE = pathlib.Path(__file__).resolve().parent


def load(name):
    """Import the program `name` of the folder `programs` as a module of the package."""
    if sys.path and pathlib.Path(sys.path[0]).resolve() == HERE:
        del sys.path[0]
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(HERE)]
    sys.modules[PACKAGE] = package
    return importlib.import_module("{}.programs.{}".format(PACKAGE, name))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python kernels PROGRAM < request.json")
    program = load(sys.argv[1])
    protocol = importlib.import_module(PACKAGE + ".protocol")
    protocol.main(program.run, getattr(program, "prepare", None))
