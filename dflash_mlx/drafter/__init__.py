"""The drafter: its configuration, its forward over a block, and what it proposes."""
