"""The round: draft, verify, accept, commit, all on the device."""
