"""Why a Triton realization declines a call. Imports no Triton."""
