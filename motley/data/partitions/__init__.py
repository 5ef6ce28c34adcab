"""How partitions divide the samples, one module per kind of heterogeneity."""
