"""What is kept: canonical bytes, names, the envelope, redaction. Pure."""
