"""What runs have left: shown, listed, compared, drawn as graphs and pages, and removed."""
