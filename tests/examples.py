"""How many random examples the back end's properties try.

`RUTC_EXAMPLES=50 pytest tests/tensor_ir/test_steps.py tests/emit/test_kernels.py
tests/test_compile_graphs.py` tries fifty times as many, for a long run.
"""

import os

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """Settings for `count` examples, times the environment variable `RUTC_EXAMPLES`."""
    return settings(
        max_examples=count * int(os.environ.get("RUTC_EXAMPLES", "1")),
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
