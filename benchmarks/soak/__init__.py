"""Long runs of a cluster with everything at once, and what they leave: docs/longevity.md."""
