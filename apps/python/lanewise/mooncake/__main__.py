# SPDX-License-Identifier: Apache-2.0
"""python3 -m lanewise.mooncake prints the folder for PYTHONPATH."""

from . import path

print(path())
