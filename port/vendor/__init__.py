"""The vendor packages the contract's callers import, under their own names: thin faces over the port's arithmetic."""
