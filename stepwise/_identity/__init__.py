"""Identities of calls and runs: arguments, attributes, captured variables.

The modules, each importing only from those before it::

    module_names clients parts identity captures leaves call_parts holders sights
"""
