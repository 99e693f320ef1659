"""Ships with the package: contract suites for backends. Nothing inside imports it."""
