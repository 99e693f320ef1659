"""Child processes and signals: a program is fed, drained, bounded and ended with all that it started."""
