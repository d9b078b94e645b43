"""Remote procedure calls into a child process with its own interpreter, as simulators and engines need."""
