"""One file for each fused operator: which layers compute it, and what takes its place in them."""
