"""Tools that a model may call: the manifest that declares them, and how one call is performed."""
