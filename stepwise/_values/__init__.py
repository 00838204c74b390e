"""Values: digests, encoding, pickling, comparison, previews, secrets.

The modules, each importing only from those before it::

    moments digest_atoms sentinels digest_types instances class_contents buffers message_fields
    addresses dict_watch trees list_digest synchronizers reducers digest pickling preview comparison
    secrets hidden_arguments tagged_json exception_data data schemas codec
"""
