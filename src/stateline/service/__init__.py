"""The verbs: frozen options in, frozen result out. Nothing here prints."""
