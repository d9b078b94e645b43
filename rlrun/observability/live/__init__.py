"""What the console shows while a run goes on."""
