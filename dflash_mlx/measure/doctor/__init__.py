"""Is everything here as it should be? One check a module, said in plain sentences."""
