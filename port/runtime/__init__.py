"""Running the model: the cache, the batch it is given, and generation on top of both."""
