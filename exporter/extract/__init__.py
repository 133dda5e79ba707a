"""From a trained bundle back to a model that predicts."""
