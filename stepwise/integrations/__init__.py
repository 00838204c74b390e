"""For users of agent frameworks: their own classes, on the journal of a run."""
