"""One table of tolerances: what rounding may cost in each dtype, relative to numbers of order one."""

from __future__ import annotations

import torch

ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}
