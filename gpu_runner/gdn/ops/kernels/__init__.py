"""The Triton realizations, one file a stage; imported on first use only."""
