"""The command line: names the commands of all packages, and imports none until one is called."""
