# SPDX-License-Identifier: Apache-2.0
"""Lanewise under the name `mooncake`, for programs that say `from mooncake.engine import TransferEngine`.

Only where somebody asks for it: by install() in the program, or by the folder path() in PYTHONPATH.
"""

import importlib.util
import os
import sys
import types

_MARK = "__lanewise__"


def path():
    """The folder that makes `import mooncake` mean Lanewise for a program that is not changed."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shim")


def install(replace=False):
    """From here on `mooncake.engine` is Lanewise in this process. ImportError when there is a real mooncake, unless
    replace is true: modules that imported it before keep it."""
    from . import engine

    there = sys.modules.get("mooncake")
    if there is not None and hasattr(there, _MARK):
        return there
    if not replace and (there is not None or importlib.util.find_spec("mooncake") is not None):
        raise ImportError("a mooncake is installed already; lanewise.mooncake.install(replace=True) takes its place")
    for name in [name for name in sys.modules if name == "mooncake" or name.startswith("mooncake.")]:
        del sys.modules[name]
    package = types.ModuleType("mooncake", "Lanewise in the place of Mooncake's transfer engine.")
    package.__path__ = []  # a package, in which nothing else is found
    package.engine = engine
    setattr(package, _MARK, True)
    sys.modules["mooncake"] = package
    sys.modules["mooncake.engine"] = engine
    return package


def check_path(own):
    """For the folder's own mooncake: ImportError when a real one stands behind it, unless LANEWISE_MOONCAKE is
    "replace"."""
    if os.environ.get("LANEWISE_MOONCAKE") == "replace":
        return
    for folder in sys.path:
        other = os.path.join(folder or os.getcwd(), "mooncake")
        if os.path.isdir(other) and not os.path.samefile(other, own):
            raise ImportError(
                f"there is a mooncake in {other} too; LANEWISE_MOONCAKE=replace has Lanewise take its place, without "
                f"{path()} in PYTHONPATH the real one is found"
            )
