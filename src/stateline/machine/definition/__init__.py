"""Read and check machine files. Pure."""
