"""Measuring a pair: its speed, its τ, whether it is lossless, and whether all is well here."""
