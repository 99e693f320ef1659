"""Record exchanges with models and play them back."""
