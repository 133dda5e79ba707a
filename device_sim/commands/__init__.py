"""The commands of simulations and emulated fleets."""
