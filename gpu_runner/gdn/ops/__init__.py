"""The operators of Gated DeltaNet: `calls` is what the model uses, `plan` cuts a batch into chunks."""
