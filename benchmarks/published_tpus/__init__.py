"""Published training speeds of named TPUs, beside what the preflight says of the same steps."""
