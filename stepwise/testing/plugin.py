"""The pytest plugin by its earlier name, for ``-p stepwise.testing.plugin``."""

from stepwise_pytest import crash_everywhere, pytest_addoption, pytest_configure

__all__ = ["crash_everywhere", "pytest_addoption", "pytest_configure"]
