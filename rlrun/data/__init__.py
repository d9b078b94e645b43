"""Files: checkpoint folders, checksums, recordings, LeRobot data sets and their fit to a world; numpy only."""
