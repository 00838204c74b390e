"""The pytest plugin by its earlier name, for ``-p stepwise.testing.plugin``.

Imports: stepwise_pytest, which stands outside the package.
"""

from stepwise_pytest import crash_everywhere, pytest_addoption, pytest_configure

__all__ = ["crash_everywhere", "pytest_addoption", "pytest_configure"]
