"""Programs repaired in memory, module by module, as they are imported."""
