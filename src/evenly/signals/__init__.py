"""Read the system: CPU clocks, cgroups, memory, event-loop lag.  Readers decide nothing."""
