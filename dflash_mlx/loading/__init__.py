"""A target and its drafter, from folders, the Hub or the embedded default, as a pair."""
