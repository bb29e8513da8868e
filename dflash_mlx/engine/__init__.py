"""Rounds on the device, and the host loop that queues and reads them."""
