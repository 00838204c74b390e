"""The page of a store's runs.

The modules, each importing only from those before it::

    _view
"""
