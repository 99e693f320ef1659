"""Record exchanges with a model, and play them back."""
