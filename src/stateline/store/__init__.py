"""Where snapshots are kept: backends behind two small protocols."""
