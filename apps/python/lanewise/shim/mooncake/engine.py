# SPDX-License-Identifier: Apache-2.0
import sys

from lanewise.mooncake import engine

sys.modules[__name__] = engine
