"""For users of agent frameworks: their own classes, on the journal of a run.

The modules of recorded model calls, each importing only from those before it::

    _supported _request_masks _model_requests _model_answers
"""
