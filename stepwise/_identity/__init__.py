"""Identities of calls and runs: arguments, attributes, captured variables.

The modules, each importing only from those before it::

    module_names clients identity held_parts call_parts versions following
"""
