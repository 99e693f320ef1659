"""What happens: load, advance, act, save."""
