"""One package for each controller: reads, decides, acts."""
