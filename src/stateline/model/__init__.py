"""Models: one protocol, the providers behind it, and the wrappers that record and play back."""
