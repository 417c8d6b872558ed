"""Run a fleet of real processes on this machine, to watch and to hurt (`evenly demo`)."""
