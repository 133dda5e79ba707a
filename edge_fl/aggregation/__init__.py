"""How a round's updates become a change of the model: rules, and sums. Imports edge_fl.core."""
