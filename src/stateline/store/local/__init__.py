"""The local backend: one directory of plain files."""
