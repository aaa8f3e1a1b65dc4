"""Front ends: each turns a model of another system into a `Graph`, by way of a JAX function."""
