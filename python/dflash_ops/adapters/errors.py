class ModelError(Exception):
    """A model that cannot be had or read; the message is one line for the user."""
