"""How many random examples a property tries: a fifth each day, all with `--all`.

`RUTC_EXAMPLES=50 pytest tests/tensor_ir/test_steps.py tests/emit/test_kernels.py
tests/end_to_end/test_compile_graphs.py` tries fifty times all, for a long run.
"""

import os

from hypothesis import HealthCheck, settings

from tests.sampling import SAMPLE

DAYS = 5
"""So many days' examples are all."""
LEAST = 5


def examples(count: int) -> settings:
    """Settings for `count` examples: a day's share, all, or as many times that as are asked for."""
    times = int(os.environ.get("RUTC_EXAMPLES", "0"))
    if times == 0 and not SAMPLE.everything:
        count = min(count, max(-(-count // DAYS), LEAST))
    return settings(
        max_examples=count * max(times, 1),
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
