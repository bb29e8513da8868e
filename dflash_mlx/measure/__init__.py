"""Measuring a pair: how fast it is (``benchmark``), and whether it is lossless (``verify``)."""
