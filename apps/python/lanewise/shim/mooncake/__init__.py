# SPDX-License-Identifier: Apache-2.0
"""Lanewise under the name mooncake: see lanewise.mooncake."""

import os
import sys

try:
    import lanewise.mooncake
except ImportError:  # the folder alone is in PYTHONPATH, and the package is not installed
    sys.path.append(os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")))
    import lanewise.mooncake

lanewise.mooncake.check_path(os.path.dirname(os.path.abspath(__file__)))
__lanewise__ = True
