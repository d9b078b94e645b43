"""The story of a run: the loop, and what starts, resumes, evaluates and ends it."""
