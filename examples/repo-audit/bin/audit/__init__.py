"""What the audit's programs share; each program beside this directory is one stage of audit.yaml."""
