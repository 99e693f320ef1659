"""The snapshot store: scopes and objects on backends behind two small protocols."""
