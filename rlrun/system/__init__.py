"""What every room needs of the operating system: errors, exit statuses, ports, signals, full disks, locks."""
