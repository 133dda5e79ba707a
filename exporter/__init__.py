"""From a PyTorch model to a bundle: the only package that traces models."""
