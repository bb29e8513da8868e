"""Train a drafter for a target: blocks and losses, the loop, the data, and what comes out."""
