"""Operating system: errors and exit statuses, files, locks, ports, signals, standard streams, GPUs, control groups."""
