"""One file for each fused operator: how it replaces the computation of the layers that a family names."""
