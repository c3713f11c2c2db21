"""Many workload clusters: their connections, one queue, and what runs beside it in each."""
