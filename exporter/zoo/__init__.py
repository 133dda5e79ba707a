"""The models of the papers, one file a family, each cited."""
