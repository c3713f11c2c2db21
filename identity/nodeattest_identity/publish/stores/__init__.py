"""Places that hold an issuer's documents. Each is imported, and its library with it, only when it is used."""
