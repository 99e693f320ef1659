"""The one function that decides what happens next in a run. Pure."""
