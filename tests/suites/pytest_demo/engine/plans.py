"""A registry that no test cleans up: what one test leaves here, the next one finds."""

PLANS: dict[str, str] = {}
