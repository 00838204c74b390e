"""Values: digests, encoding, pickling, comparison, previews, secrets.

The modules, each importing only from those before it::

    unpickling trees memory reducers comparison data credentials preview digest exception_data
    codec
"""
