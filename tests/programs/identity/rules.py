"""Other rules in the library's place: what a program begins with, for controls that must fail."""

_BOTH = """
import re
from stepwise._values import digest as _digest
from stepwise._calls import steps as _steps
from stepwise._matching.subjects import Identity

def _identify(self, *args, right=_steps.Step.identify):
    known = right(self, *args)
    return Identity(_identity(known.digest, known.parts), {})

_steps.Step.identify = _identify
"""

TODAY = f"""
# As version a6cd4d2 had it: a name and a digest of the arguments; instances and captures left out.
{_BOTH}
def _identity(digest, parts):
    return digest
"""
NAIVE = f"""
# A digest of the whole instance, and of all that is captured, in the identity of a call.
{_BOTH}
def _identity(digest, parts):
    seen = [f"{{name}}{{re.sub('[?].*', '', text)}}" for name, text in sorted(parts.items())]
    return _digest.combine(digest, *seen)
"""
RULES = {"today": TODAY, "naive": NAIVE}
