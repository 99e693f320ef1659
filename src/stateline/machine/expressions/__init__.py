"""CEL expressions and JSON Schema. Pure."""
