"""How many examples hypothesis tries.

The same at every run; ``STEPWISE_EXAMPLES=5000`` looks for new ones.  Apart from ``sweeping``,
which is imported before pytest has prepared hypothesis.
"""

import os

from hypothesis import settings

sweep = settings(
    max_examples=int(os.environ.get("STEPWISE_EXAMPLES") or settings.default.max_examples),
    derandomize="STEPWISE_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
)
