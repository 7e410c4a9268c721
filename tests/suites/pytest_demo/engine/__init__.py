"""The engine under test: a registry of plans that lives as long as the process."""
