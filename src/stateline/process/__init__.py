"""Child processes and signals: start, feed, drain, bound and end a program together with its descendants."""
