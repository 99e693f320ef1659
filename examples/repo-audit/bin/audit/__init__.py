"""Shared code of the audit's programs; each program in the parent directory is one stage of audit.yaml."""
