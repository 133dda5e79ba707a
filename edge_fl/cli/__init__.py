"""The command line: one file a command. Heavy imports stay inside the commands that need them."""
