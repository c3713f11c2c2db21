"""From a request's key to a verdict, and from a verdict to the writes that it takes."""
